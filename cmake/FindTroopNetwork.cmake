# The libraries of troop::net: Boost.Asio, of which only headers are used, and OpenSSL. Defines
# TroopNetwork::TroopNetwork.
include(FindPackageHandleStandardArgs)

find_package(Boost 1.81 QUIET)
find_package(OpenSSL QUIET)

set(TroopNetwork_BOOST "${Boost_VERSION}")
set(TroopNetwork_OPENSSL "${OPENSSL_VERSION}")
if(NOT Boost_FOUND)
  set(TroopNetwork_BOOST "")
endif()
find_package_handle_standard_args(TroopNetwork REQUIRED_VARS TroopNetwork_BOOST TroopNetwork_OPENSSL)

if(TroopNetwork_FOUND AND NOT TARGET TroopNetwork::TroopNetwork)
  add_library(TroopNetwork::TroopNetwork INTERFACE IMPORTED)
  target_link_libraries(TroopNetwork::TroopNetwork INTERFACE Boost::headers OpenSSL::SSL OpenSSL::Crypto)
endif()
