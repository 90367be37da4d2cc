# cmake -D NAME=<example> -D PROGRAM=<it> -D SOURCE=<its source> -D FOLDER=<to work in> -P learns.cmake
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")

# run(CODE REGEX words...): the program ends with CODE, and what it prints, both streams together, matches REGEX.
function(run code regex)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE result
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result STREQUAL code OR NOT output MATCHES "${regex}")
    message(SEND_ERROR "${PROGRAM} ${ARGN}\nended with ${result}, expected ${code}; printed:\n${output}expected to match:\n${regex}")
  endif()
endfunction()

if(NAME MATCHES "^custom_")
  file(READ "${SOURCE}" source)
  string(REGEX REPLACE "[^\n]" "" line_ends "${source}")
  string(LENGTH "${line_ends}" lines)
  if(lines GREATER 60)
    message(SEND_ERROR "${SOURCE} has ${lines} lines; 60 is what an example of one thing may take")
  endif()
endif()

if(NAME STREQUAL "custom_network")
  run(0 "conv.weight +256 parameters\n.*learner steps: mean return [01]\\.[0-9][0-9]\n$")
  run(2 "^error: [^\n]*[Pp]ool[^\n]*\n$" "conv(16,4,4) pool(2)")
else()
  # Solved is what the environment says: for Catch 19 of 20 balls, within two minutes.
  run(0 "\nsolved: mean_return=[01]\\.[0-9]+ episodes=100 [^\n]*\n$" --seed 3 --max-seconds 120)
  run(0 "^evaluated: mean_return=[01]\\.[0-9]+ episodes=100 [^\n]* file=network.troop\n$" --evaluate network.troop)
  run(2 "^error: unknown option --sed; did you mean --seed[^\n]*\n$" --sed 7)
endif()
