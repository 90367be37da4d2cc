# cmake -D PROGRAM=<gymnasium_probe> -D PYTHON=<interpreter that the program is linked with> -D FOLDER=<to work in>
#       -D PART=places|processes -D SANITIZED=<compiler flags, if any of that kind> -P probe.cmake
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
unset(ENV{VIRTUAL_ENV})

# run(CODE REGEX words...): the program ends with CODE, and what it prints, both streams together, matches REGEX.
function(run code regex)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE result TIMEOUT 100
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result STREQUAL code OR NOT output MATCHES "${regex}")
    message(SEND_ERROR "${ARGN}\nended with ${result}, expected ${code}; printed:\n${output}expected to match:\n${regex}")
  endif()
endfunction()

if(PART STREQUAL "places")
  # The place of Python: said but not there, of another version, without the packages.
  set(ENV{TROOP_PYTHON} "${FOLDER}/nowhere/bin/python")
  run(1 "^error: TROOP_PYTHON: ${FOLDER}/nowhere/bin/python is not allowed; expected a Python interpreter of version 3[.][0-9]+\n$"
      "${PROGRAM}" make CartPole-v1)

  file(MAKE_DIRECTORY "${FOLDER}/other/bin")
  file(TOUCH "${FOLDER}/other/bin/python")
  file(WRITE "${FOLDER}/other/pyvenv.cfg" "home = /usr/bin\nversion = 3.1.4\n")
  unset(ENV{TROOP_PYTHON})
  set(ENV{VIRTUAL_ENV} "${FOLDER}/other")
  run(1 "^error: VIRTUAL_ENV: .*/other/bin/python of version 3[.]1[.]4 is not allowed; expected version 3[.][0-9]+, with which"
      "${PROGRAM}" atari pong)
  unset(ENV{VIRTUAL_ENV})

  execute_process(COMMAND "${PYTHON}" -m venv --without-pip "${FOLDER}/bare" COMMAND_ERROR_IS_FATAL ANY)
  set(ENV{TROOP_PYTHON} "${FOLDER}/bare/bin/python")
  run(1 "^error: ModuleNotFoundError: No module named 'gymnasium'; install it: ${FOLDER}/bare/bin/python -m pip install gymnasium==[0-9.]+ [(]or name"
      "${PROGRAM}" make CartPole-v1)
  run(1 "^error: pong: ModuleNotFoundError: No module named 'ale_py'; install it: ${FOLDER}/bare/bin/python -m pip install ale-py==[0-9.]+ [(]or name"
      "${PROGRAM}" atari pong)
  return()
endif()

execute_process(COMMAND "${PROGRAM}" atari pong RESULT_VARIABLE result OUTPUT_VARIABLE output)
if(NOT result EQUAL 0 AND output MATCHES "No module named")
  message("skipped: ${output}`make atari-deps` makes a Python that has it")
  return()
endif()
run(0 "made\n$" "${PROGRAM}" atari pong)
run(1 "error: NameNotFound: Environment `CartPol` doesn't exist. Did you mean: `CartPole`[?] [^\n]*\n$" "${PROGRAM}" make CartPol-v1)
run(1 "error: game: ponk is not allowed; expected one of the [0-9]+ that ale_py has; did you mean pong[?]\n$" "${PROGRAM}" atari ponk)
run(0 "leaving\n$" "${PROGRAM}" exit)
run(0 "leaving\n$" "${PROGRAM}" quit)
# Ale_py complains of what is not destroyed before its interpreter; that is so here.
run(0 "mine 7\n(.*\n)?ended\n$" "${PROGRAM}" own)
run(0 "raced\n$" "${PROGRAM}" race)
run(0 "as before\n$" "${PROGRAM}" signal)
# An actor process with 16 games.
if(NOT SANITIZED)
  execute_process(COMMAND "${PROGRAM}" memory 16 OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  message("16 games: ${output}")
  if(NOT output MATCHES "memory ([0-9]+) MB" OR CMAKE_MATCH_1 GREATER 600)
    message(SEND_ERROR "16 games take more than 600 MB")
  endif()
endif()
