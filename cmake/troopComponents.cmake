# What each component is made of. Read by the build, by the installed package and by the check of the #include
# lines, so that an arrow between folders is drawn only here. A component uses only those that stand before it.
set(troop_components core compression serialization replay net monitor nn cuda durability env gymnasium agent apex)

set(troop_core_uses)
set(troop_compression_uses core)
set(troop_serialization_uses core)
set(troop_replay_uses core)
set(troop_net_uses core compression serialization replay)
set(troop_monitor_uses core compression serialization replay net)
set(troop_nn_uses core)
set(troop_cuda_uses core replay nn)
set(troop_durability_uses core compression replay nn)
set(troop_env_uses core)
set(troop_gymnasium_uses core env)
set(troop_agent_uses core replay nn env)
set(troop_apex_uses core compression serialization replay net monitor nn cuda durability env agent)

# The headers of include/troop itself and the component each is installed with.
set(troop_core_top version.hpp fwd.hpp)
set(troop_agent_top troop.hpp)
set(troop_apex_top apex.hpp)

# Package, imported target, Debian's name for it, the folder from which its headers are included, and definitions
# that its users need.
set(troop_core_package Threads)
set(troop_core_link Threads::Threads)
set(troop_core_debian libc6-dev)

set(troop_compression_package TroopCompression)
set(troop_compression_link TroopCompression::TroopCompression)
set(troop_compression_debian "liblz4-dev and libzstd-dev")

set(troop_serialization_package cereal)
set(troop_serialization_link cereal::cereal)
set(troop_serialization_debian libcereal-dev)
set(troop_serialization_foreign cereal)
set(troop_serialization_definitions CEREAL_THREAD_SAFE=1)

set(troop_net_package TroopNetwork)
set(troop_net_link TroopNetwork::TroopNetwork)
set(troop_net_debian "libboost1.81-dev and libssl-dev")
set(troop_net_foreign boost cereal openssl)

set(troop_monitor_package TroopMonitor)
set(troop_monitor_link TroopMonitor::TroopMonitor)
set(troop_monitor_debian "prometheus-cpp-dev and libprotobuf-dev")
set(troop_monitor_foreign boost google openssl prometheus)

set(troop_nn_package Eigen3 3.4)
set(troop_nn_link Eigen3::Eigen)
set(troop_nn_debian libeigen3-dev)
set(troop_nn_foreign Eigen)

# Only with TROOP_CUDA; without it troop::cuda says at run time that it is missing, and needs nothing.
set(troop_cuda_package TroopCuda)
set(troop_cuda_debian "cuda-toolkit-13-0 and libcudnn9-dev-cuda-13 of NVIDIA")

set(troop_gymnasium_package TroopPython)
set(troop_gymnasium_link TroopPython::TroopPython)
set(troop_gymnasium_debian "pybind11-dev and python3-dev")
set(troop_gymnasium_foreign pybind11)

set(troop_apex_package TroopProgram)
set(troop_apex_link TroopProgram::TroopProgram)
set(troop_apex_debian "libcli11-dev and libspdlog-dev")
set(troop_apex_foreign CLI spdlog)
