# cmake -D PROGRAM=<cart_pole> -D FOLDER=<to work in> -P cart_pole.cmake
cmake_minimum_required(VERSION 3.24)
file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")

# run(CODE REGEX words...): the program ends with CODE, and what it prints, both streams together, matches REGEX.
function(run code regex)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE result
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result STREQUAL code OR NOT output MATCHES "${regex}")
    message(SEND_ERROR "${ARGN}\nended with ${result}, expected ${code}; printed:\n${output}expected to match:\n${regex}")
  endif()
endfunction()

# An error is one line, and nothing is left behind.
function(refuse regex)
  run(2 "^error: ${regex}[^\n]*\n$" "${PROGRAM}" ${ARGN})
  file(GLOB left "${FOLDER}/*")
  if(left)
    message(SEND_ERROR "${ARGN}\nleft behind: ${left}")
  endif()
endfunction()

refuse("--batch-size: 0 is not allowed; expected an integer from 1 to 65536" --batch-size 0)
refuse("--alpha: -1 is not allowed; expected a number from 0 to 10" --alpha -1)
refuse("--capacity: 0 is not allowed" --capacity 0)
refuse("--capacity: 99999999999 is not allowed; expected at most [0-9]+ records of 44 bytes" --capacity 99999999999)
refuse("unknown option --sed; did you mean --seed" --sed 7)
refuse("--config: missing.toml is not allowed; expected a file that can be read" --config missing.toml)
refuse("--output: no/such/folder/x is not allowed; expected a file that can be written" --output no/such/folder/x)
refuse("missing.troop: " --evaluate missing.troop)

# A short training, to a return that is soon reached; twice the same seed is twice the same run.
set(solved "solved: mean_return=[0-9.]+ episodes=20 seconds=[0-9.]+ environment_steps=([0-9]+) learner_steps=([0-9]+) seed=7\n$")
set(easy "${PROGRAM}" --seed 7 --deterministic --target-return 60 --evaluation-episodes 20 --max-seconds 250)
run(0 "return [0-9.]+\nsaved the network to a.troop; play it with --evaluate a.troop\n${solved}" ${easy} --output a.troop)
run(0 "^${solved}" ${easy} --output b.troop --quiet)
file(SHA256 "${FOLDER}/a.troop" a)
file(SHA256 "${FOLDER}/b.troop" b)
if(NOT a STREQUAL b)
  message(SEND_ERROR "two deterministic runs of one seed saved different networks")
endif()
run(0 "^evaluated: mean_return=[0-9.]+ episodes=20 .* file=a.troop\n$" "${PROGRAM}" --evaluate a.troop --evaluation-episodes 20)
run(1 "not solved: mean_return=" "${PROGRAM}" --target-return 501 --max-seconds 0.2 --output c.troop)

# An earlier network is kept, and the user is told so before and after.
run(1 "^note: c.troop is there already: it will be kept.*\nkept the earlier c.troop as c.1.troop\nsaved the network to c.troop;"
    "${PROGRAM}" --target-return 501 --max-seconds 0.2 --output c.troop)

# A file that cannot be written after all: the result is still told.
run(1 "\nnot solved: [^\n]*\nerror: c.troop: cannot write: File too large\n$" sh -c
    "trap '' XFSZ\nulimit -f 8\nexec \"${PROGRAM}\" --target-return 501 --max-seconds 0.2 --output c.troop")

# Lines as collectors of logs read them, the last one too.
set(json "{\"time\":\"[-0-9]+T[0-9:.]+Z\",\"severity\":\"INFO\",\"role\":\"all\",\"message\":\"[^\n]*")
run(1 "^(${json}\"}\n)+${json}not solved: mean_return=[^\n]*\"}\n$" "${PROGRAM}" --log-format json
    --target-return 501 --max-seconds 2 --output d.troop)
run(2 "^{[^\n]*\"severity\":\"ERROR\",\"role\":\"all\",\"message\":\"missing.troop: [^\n]*\"}\n$" "${PROGRAM}"
    --log-format json --evaluate missing.troop)

# A trace of a part of the run, as the viewers read it.
run(1 "wrote .*trace.json.*not solved: " "${PROGRAM}" --target-return 501 --max-seconds 3 --output d.troop
    --profile trace.json --profile-after 0.5 --profile-seconds 1)
file(READ "${FOLDER}/trace.json" trace)
string(JSON events LENGTH "${trace}" traceEvents)
foreach(name IN ITEMS sample step)
  if(events LESS 10 OR NOT trace MATCHES "\"name\": *\"${name}\"")
    message(SEND_ERROR "trace.json has ${events} events; expected one called ${name}, and more")
  endif()
endforeach()

# Ctrl-C and SIGTERM.
foreach(signal IN ITEMS "INT;130" "TERM;143")
  list(GET signal 0 name)
  list(GET signal 1 code)
  file(REMOVE "${FOLDER}/c.troop")
  run(${code} "stopped by a signal: saved the network to c.troop.*not solved: " sh -c
      "\"${PROGRAM}\" --target-return 501 --max-seconds 60 --output c.troop &\nsleep 1\nkill -${name} $!\nwait $!")
  if(NOT EXISTS "${FOLDER}/c.troop")
    message(SEND_ERROR "SIG${name}: no network was saved")
  endif()
endforeach()

# A reader that has seen enough: the run stops, saves, and says so where it can still be heard.
file(REMOVE "${FOLDER}/c.troop")
run(0 "^ *[0-9.]+s .*\nstopped by a signal: saved the network to c.troop.*not solved: .*ended with 141\n$" sh -c
    "{\n\"${PROGRAM}\" --target-return 501 --max-seconds 60 --output c.troop\necho ended with $? >&2\n} | head -n 1")
if(NOT EXISTS "${FOLDER}/c.troop")
  message(SEND_ERROR "a closed pipe: no network was saved")
endif()
