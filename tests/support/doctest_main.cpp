// The one translation unit that holds doctest's implementation and main(); every unit test links it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
