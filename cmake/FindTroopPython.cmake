# What troop::gymnasium embeds: a Python with its library, and pybind11's headers. Defines TroopPython::TroopPython. The
# target Python3::Interpreter is that very Python, which makes virtual environments that fit.
include(FindPackageHandleStandardArgs)

find_package(Python3 3.9 QUIET COMPONENTS Interpreter Development.Embed)
set(PYBIND11_NOPYTHON ON)  # the Python is chosen here
find_package(pybind11 2.10 CONFIG QUIET)
unset(PYBIND11_NOPYTHON)

set(TroopPython_EXECUTABLE "")
set(TroopPython_VERSION "")
if(Python3_FOUND)
  set(TroopPython_EXECUTABLE "${Python3_EXECUTABLE}")
  set(TroopPython_VERSION "${Python3_VERSION}")
endif()
find_package_handle_standard_args(TroopPython REQUIRED_VARS TroopPython_EXECUTABLE pybind11_FOUND
                                  VERSION_VAR TroopPython_VERSION)

if(TroopPython_FOUND AND NOT TARGET TroopPython::TroopPython)
  add_library(TroopPython::TroopPython INTERFACE IMPORTED)
  target_link_libraries(TroopPython::TroopPython INTERFACE Python3::Python pybind11::headers)
endif()
