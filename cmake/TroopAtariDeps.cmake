# The target atari_deps makes a virtual environment with the packages of python-requirements.txt, by the Python that
# troop::gymnasium is linked with. All presets share it; programs built here use it where nothing else is said.
set(TROOP_PYTHON_VENV "${PROJECT_SOURCE_DIR}/build/python" CACHE PATH "The virtual environment of Gymnasium and ale-py")

if(NOT TARGET troop_gymnasium)
  if(NOT TROOP_GYMNASIUM)
    set(troop_gymnasium_missing "TROOP_GYMNASIUM is OFF")
  endif()
  add_custom_target(atari_deps
    COMMAND ${CMAKE_COMMAND} -E echo "troop::gymnasium is not built: ${troop_gymnasium_missing}"
    COMMAND ${CMAKE_COMMAND} -E false
    VERBATIM)
  return()
endif()

add_custom_target(atari_deps
  COMMAND ${CMAKE_COMMAND} -D "PYTHON=$<TARGET_FILE:Python3::Interpreter>" -D "VENV=${TROOP_PYTHON_VENV}"
          -D "REQUIREMENTS=${PROJECT_SOURCE_DIR}/cmake/python-requirements.txt"
          -P "${PROJECT_SOURCE_DIR}/cmake/make_venv.cmake"
  VERBATIM)
target_compile_definitions(troop_gymnasium INTERFACE
  "$<BUILD_INTERFACE:TROOP_BUILD_PYTHON=\"${TROOP_PYTHON_VENV}/bin/python\">")
