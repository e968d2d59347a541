// Floe from C++: c++ -std=c++17 quick.cpp $(pkg-config --cflags --libs floe)
#include <floe.hpp>
#include <iostream>

int main() {
    floe::Cache cache(floe::Options().capacity(10'000).policy("s3-fifo"));
    cache.insert("key", "value");
    cache.read("key", [](std::string_view value) { std::cout << "read: " << value << '\n'; });
    auto loaded = cache.get_or_load("page", [] { return std::string("from the disk"); });
    cache.clear();
    std::cout << "kept: " << loaded.text() << '\n';
    std::cout << "hits: " << cache.stats().hits << '\n';
}
