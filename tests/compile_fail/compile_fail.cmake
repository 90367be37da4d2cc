# cmake -D COMPILER=.. -D SOURCE=.. -D INCLUDES=.. -P compile_fail.cmake
cmake_minimum_required(VERSION 3.24)

file(STRINGS "${SOURCE}" expected LIMIT_COUNT 1)
if(NOT expected MATCHES "^// expect: (.+)$")
  message(FATAL_ERROR "${SOURCE}: the first line must be '// expect: <text of the error>'")
endif()
set(expected "${CMAKE_MATCH_1}")

list(TRANSFORM INCLUDES PREPEND "-I")
set(ENV{LC_ALL} C)
execute_process(COMMAND "${COMPILER}" -std=c++20 -fsyntax-only ${INCLUDES} "${SOURCE}"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(FIND "${output}" "${expected}" at)
if(status EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, but it must not")
elseif(at EQUAL -1)
  message("${output}")
  message(FATAL_ERROR "${SOURCE} fails to compile, but without the text: ${expected}")
endif()
