# The libraries of troop::compression: LZ4, for which no CMake package is installed everywhere, and Zstandard.
# Defines TroopCompression::TroopCompression.
include(FindPackageHandleStandardArgs)

find_path(TroopCompression_LZ4_INCLUDE_DIR lz4.h)
find_library(TroopCompression_LZ4_LIBRARY lz4)
find_path(TroopCompression_ZSTD_INCLUDE_DIR zstd.h)
find_library(TroopCompression_ZSTD_LIBRARY zstd)
mark_as_advanced(TroopCompression_LZ4_INCLUDE_DIR TroopCompression_LZ4_LIBRARY
                 TroopCompression_ZSTD_INCLUDE_DIR TroopCompression_ZSTD_LIBRARY)

find_package_handle_standard_args(TroopCompression REQUIRED_VARS
  TroopCompression_LZ4_LIBRARY TroopCompression_LZ4_INCLUDE_DIR
  TroopCompression_ZSTD_LIBRARY TroopCompression_ZSTD_INCLUDE_DIR)

if(TroopCompression_FOUND AND NOT TARGET TroopCompression::TroopCompression)
  add_library(TroopCompression::TroopCompression INTERFACE IMPORTED)
  target_include_directories(TroopCompression::TroopCompression SYSTEM INTERFACE
    "${TroopCompression_LZ4_INCLUDE_DIR}" "${TroopCompression_ZSTD_INCLUDE_DIR}")
  target_link_libraries(TroopCompression::TroopCompression INTERFACE
    "${TroopCompression_LZ4_LIBRARY}" "${TroopCompression_ZSTD_LIBRARY}")
endif()
