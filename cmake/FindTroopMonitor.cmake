# The libraries of troop::monitor: the core of prometheus-cpp, whose own package also asks for what its servers need,
# and the small one of Protocol Buffers, for the wire format. Defines TroopMonitor::TroopMonitor.
include(FindPackageHandleStandardArgs)

find_path(TroopMonitor_PROMETHEUS_INCLUDE_DIR prometheus/registry.h)
find_library(TroopMonitor_PROMETHEUS_LIBRARY prometheus-cpp-core)
find_path(TroopMonitor_PROTOBUF_INCLUDE_DIR google/protobuf/io/coded_stream.h)
find_library(TroopMonitor_PROTOBUF_LIBRARY protobuf-lite)
mark_as_advanced(TroopMonitor_PROMETHEUS_INCLUDE_DIR TroopMonitor_PROMETHEUS_LIBRARY
                 TroopMonitor_PROTOBUF_INCLUDE_DIR TroopMonitor_PROTOBUF_LIBRARY)

find_package_handle_standard_args(TroopMonitor REQUIRED_VARS
  TroopMonitor_PROMETHEUS_LIBRARY TroopMonitor_PROMETHEUS_INCLUDE_DIR
  TroopMonitor_PROTOBUF_LIBRARY TroopMonitor_PROTOBUF_INCLUDE_DIR)

if(TroopMonitor_FOUND AND NOT TARGET TroopMonitor::TroopMonitor)
  add_library(TroopMonitor::TroopMonitor INTERFACE IMPORTED)
  target_include_directories(TroopMonitor::TroopMonitor SYSTEM INTERFACE
    "${TroopMonitor_PROMETHEUS_INCLUDE_DIR}" "${TroopMonitor_PROTOBUF_INCLUDE_DIR}")
  target_link_libraries(TroopMonitor::TroopMonitor INTERFACE
    "${TroopMonitor_PROMETHEUS_LIBRARY}" "${TroopMonitor_PROTOBUF_LIBRARY}")
endif()
