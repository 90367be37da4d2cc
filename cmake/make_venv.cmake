# cmake -D PYTHON=.. -D VENV=.. -D REQUIREMENTS=.. -P make_venv.cmake: nothing is done where it is up to date.
cmake_minimum_required(VERSION 3.24)

file(SHA256 "${REQUIREMENTS}" wanted)
string(APPEND wanted " ${PYTHON}\n")
set(stamp "${VENV}/requirements.sha256")
if(EXISTS "${stamp}")
  file(READ "${stamp}" present)
  if(present STREQUAL wanted)
    return()
  endif()
endif()

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message("${output}")
    message(FATAL_ERROR "${command}\nfailed: ${VENV} could not be made. Atari and Gymnasium need it, or a Python named "
                        "by TROOP_PYTHON that has the packages of ${REQUIREMENTS}.")
  endif()
endfunction()

message("Making ${VENV} ...")
run("${PYTHON}" -m venv --clear "${VENV}")
run("${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 --timeout 20
    --requirement "${REQUIREMENTS}")
file(WRITE "${stamp}" "${wanted}")
