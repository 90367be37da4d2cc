#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <troop/monitor/json.hpp>

using troop::monitor::JsonWriter;

namespace {

std::string quoted(const std::string& text) {
  return JsonWriter().value(text).text();
}

}  // namespace

TEST_CASE("objects and arrays nest, with commas where they belong") {
  JsonWriter json;
  json.begin().member("a", 1).key("b").begin_array().value("x").value(true).begin().end().end_array();
  json.key("c").begin_array().end_array().member("d", 0.25).key("e").raw("[1]").end();
  CHECK(json.text() == R"({"a":1,"b":["x",true,{}],"c":[],"d":0.25,"e":[1]})");
}

TEST_CASE("numbers are written as short as they can be, and those that JSON has not are null") {
  JsonWriter json;
  json.begin_array().value(std::numeric_limits<std::uint64_t>::max()).value(-3).value(0.1).value(1e300);
  json.value(std::nan(""))
      .value(-INFINITY)
      .value(1.0 / 3.0, 4)
      .value(1234567.0, 3)
      .value(INFINITY, 3)
      .end_array();
  CHECK(json.text() == "[18446744073709551615,-3,0.1,1e+300,null,null,0.3333,1.23e+06,null]");
}

TEST_CASE("text cannot break out of its quotes, nor out of a script in a page") {
  CHECK(quoted("a\"b\\c") == R"("a\"b\\c")");
  CHECK(quoted("</script><!-- & \n\x01\x7f") ==
        R"("\u003c/script\u003e\u003c!-- \u0026 \u000a\u0001\u007f")");
  CHECK(quoted("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8d\x84") == R"("\u00e4 \u20ac \ud83c\udf44")");
}

TEST_CASE("bytes that are no UTF-8 become question marks, each") {
  CHECK(quoted("a\xff\xc3") == "\"a??\"");
  CHECK(quoted("\xc0\xaf") == "\"??\"");            // too long for its number
  CHECK(quoted("\xed\xa0\x80") == "\"???\"");       // half a surrogate pair
  CHECK(quoted("\xf4\x90\x80\x80") == "\"????\"");  // beyond the last number
  CHECK(quoted(std::string("a\0b", 3)) == R"("a\u0000b")");
}
