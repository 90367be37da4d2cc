# cmake -D CASE=.. -D SOURCE=.. -D SCRATCH=.. -D GENERATOR=.. -D COMPILER=.. -D LAUNCHER=.. -D COMPONENTS=.. -P check.cmake
cmake_minimum_required(VERSION 3.24)

set(prefix "${SCRATCH}/prefix")
set(without_libraries -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON -DCMAKE_DISABLE_FIND_PACKAGE_TroopProgram=ON
                      -DCMAKE_DISABLE_FIND_PACKAGE_TroopCompression=ON -DCMAKE_DISABLE_FIND_PACKAGE_cereal=ON
                      -DCMAKE_DISABLE_FIND_PACKAGE_TroopNetwork=ON
                      -DCMAKE_DISABLE_FIND_PACKAGE_TroopMonitor=ON)
file(REMOVE_RECURSE "${SCRATCH}")

# run(<command>...): must succeed.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message("${command}\n${output}")
    message(FATAL_ERROR "The command above failed")
  endif()
endfunction()

# run_refused(<text> <command>...): must fail and say <text>; line breaks count as spaces.
function(run_refused text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " flat "${output}")
  string(FIND "${flat}" "${text}" at)
  if(status EQUAL 0 OR at EQUAL -1)
    list(JOIN ARGN " " command)
    message("${command}\n${output}")
    message(FATAL_ERROR "The command above must fail and say: ${text}")
  endif()
endfunction()

function(configure source build)
  set(configure_command ${CMAKE_COMMAND} -G ${GENERATOR} -S ${source} -B ${build}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_BUILD_TYPE=None ${ARGN} PARENT_SCOPE)
endfunction()

# install([<cache setting>...]): configures troop afresh, builds its libraries and installs it.
function(install)
  configure("${SOURCE}" "${SCRATCH}/troop" -DTROOP_BUILD_TESTS=OFF -DTROOP_BUILD_EXAMPLES=OFF -DTROOP_BUILD_TOOLS=OFF ${ARGN})
  run(${configure_command})
  run(${CMAKE_COMMAND} --build "${SCRATCH}/troop")
  run(${CMAKE_COMMAND} --install "${SCRATCH}/troop" --prefix "${prefix}" --component devel)
endfunction()

# consume(<cache setting>...): builds the consumer and runs its programs.
function(consume)
  configure("${SOURCE}/tests/package/consumer" "${SCRATCH}/consumer" ${ARGN})
  run(${configure_command})
  run(${CMAKE_COMMAND} --build "${SCRATCH}/consumer" --target check)
endfunction()

function(consume_refused text)
  configure("${SOURCE}/tests/package/consumer" "${SCRATCH}/refused" ${ARGN})
  run_refused("${text}" ${configure_command})
endfunction()

if(COMPONENTS MATCHES "apex")
  set(everything -DWITH_APEX=ON)
  if(COMPONENTS MATCHES "compression")
    list(APPEND everything -DWITH_COMPRESSION=ON)
  endif()
endif()

if(CASE STREQUAL "find_package")
  install()
  consume(-DCMAKE_PREFIX_PATH=${prefix} ${everything})

elseif(CASE STREQUAL "add_subdirectory")
  consume(-DTROOP_SOURCE=${SOURCE} ${everything})

elseif(CASE STREQUAL "fetch_content")
  consume(-DTROOP_FETCH=${SOURCE} ${everything})

elseif(CASE STREQUAL "relocated")
  install()
  file(RENAME "${prefix}" "${SCRATCH}/moved")
  file(GLOB_RECURSE installed "${SCRATCH}/moved/*")
  foreach(file IN LISTS installed)
    file(READ "${file}" text)
    foreach(path IN ITEMS "${SCRATCH}" "${SOURCE}/")
      string(FIND "${text}" "${path}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "${file} names the build machine's path ${path}")
      endif()
    endforeach()
  endforeach()
  consume(-DCMAKE_PREFIX_PATH=${SCRATCH}/moved ${everything})

elseif(CASE STREQUAL "version")
  install()
  file(STRINGS "${SOURCE}/include/troop/version.hpp" numbers REGEX "^#define TROOP_VERSION_(MAJOR|MINOR) ")
  list(TRANSFORM numbers REPLACE "[^0-9]" "")
  list(GET numbers 0 major)
  list(GET numbers 1 minor)
  math(EXPR next "${minor} + 1")
  consume(-DCMAKE_PREFIX_PATH=${prefix} -DTROOP_VERSION=${major}.${minor})
  consume_refused("compatible with requested version \"${major}.${next}\""
                  -DCMAKE_PREFIX_PATH=${prefix} -DTROOP_VERSION=${major}.${next})

elseif(CASE STREQUAL "minimal")
  # A machine with a compiler and nothing else still gets the replay.
  install(${without_libraries})
  consume(-DCMAKE_PREFIX_PATH=${prefix} ${without_libraries})
  consume_refused("troop::nn was not installed, because troop was configured without libeigen3-dev"
                  -DCMAKE_PREFIX_PATH=${prefix} -DTROOP_COMPONENTS=nn)
  # Whoever asks for an example there is told what is missing.
  configure("${SOURCE}" "${SCRATCH}/examples" -DTROOP_BUILD_TESTS=OFF ${without_libraries})
  run(${configure_command})
  foreach(target IN ITEMS cart_pole examples)
    run_refused("cart_pole cannot be built: TroopCompression was not found (Debian package liblz4-dev and libzstd-dev)"
                ${CMAKE_COMMAND} --build "${SCRATCH}/examples" --target ${target})
  endforeach()
  consume_refused("troop was configured without liblz4-dev and libzstd-dev"
                  -DCMAKE_PREFIX_PATH=${prefix} -DTROOP_COMPONENTS=compression)
  consume_refused("troop::serialization was not installed, because troop was configured without libcereal-dev"
                  -DCMAKE_PREFIX_PATH=${prefix} -DTROOP_COMPONENTS=serialization)

elseif(CASE STREQUAL "missing_dependency")
  if(NOT everything)
    message("There is no full installation to take a dependency away from: nothing to check")
    return()
  endif()
  install()
  consume(-DCMAKE_PREFIX_PATH=${prefix} ${without_libraries})
  consume_refused("component agent: troop::nn needs Eigen3 3.4, which was not found (Debian package libeigen3-dev)"
                  -DCMAKE_PREFIX_PATH=${prefix} -DTROOP_COMPONENTS=agent ${without_libraries})
  consume_refused("troop has no component 'gpu'" -DCMAKE_PREFIX_PATH=${prefix} -DTROOP_COMPONENTS=gpu)

else()
  message(FATAL_ERROR "unknown CASE '${CASE}'")
endif()
