# The libraries of troop::apex that make a program of it: CLI11 and spdlog. Defines TroopProgram::TroopProgram.
include(FindPackageHandleStandardArgs)

find_package(CLI11 QUIET)
find_package(spdlog QUIET)

set(TroopProgram_CLI11 "${CLI11_VERSION}")
set(TroopProgram_SPDLOG "${spdlog_VERSION}")
find_package_handle_standard_args(TroopProgram REQUIRED_VARS TroopProgram_CLI11 TroopProgram_SPDLOG)

if(TroopProgram_FOUND AND NOT TARGET TroopProgram::TroopProgram)
  add_library(TroopProgram::TroopProgram INTERFACE IMPORTED)
  target_link_libraries(TroopProgram::TroopProgram INTERFACE CLI11::CLI11 spdlog::spdlog)
endif()
