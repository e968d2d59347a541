// floe.hpp: what it owns is freed, and exceptions pass through.
#include <floe.hpp>

#include <iostream>
#include <thread>
#include <vector>

#define CHECK(what)                                                                       \
    if (!(what)) {                                                                        \
        std::cerr << __FILE__ << ':' << __LINE__ << ": " #what "\n";                      \
        return 1;                                                                         \
    }

int main() {
    floe::Cache cache(floe::Options()
                          .capacity(1000)
                          .weight_capacity(1 << 20)
                          .policy("s3-fifo")
                          .admission("always")
                          .time_to_live_ms(60'000)
                          .time_to_idle_ms(60'000)
                          .shards(2)
                          .freezing(false));
    cache.insert("key", "value");
    cache.insert("heavy", "value", 100, 1000);
    CHECK(cache.size() == 2 && cache.contains("key") && cache.stats().weight == 108);
    auto value = cache.get("key");
    CHECK(value && !cache.get("other"));
    CHECK(cache.remove("key") && !cache.remove("key"));
    CHECK(value->text() == "value" && value->size() == 5);
    std::string seen;
    CHECK(cache.read("heavy", [&](std::string_view text) { seen = text; }) && seen == "value");
    CHECK(!cache.read("key", [](std::string_view) {}));

    try {
        cache.read("heavy", [](std::string_view) { throw std::runtime_error("from a reader"); });
        CHECK(false);
    } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()) == "from a reader");
    }
    try {
        cache.get_or_load("page", []() -> std::string { throw std::runtime_error("no disk"); });
        CHECK(false);
    } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()) == "no disk");
    }
    try {
        floe::Options().policy("no-such-policy");
        CHECK(false);
    } catch (const floe::Error& error) {
        CHECK(error.status() == FLOE_STATUS_INVALID);
        CHECK(std::string(error.what()).find("no-such-policy") != std::string::npos);
    }
    try {
        floe::Cache none{floe::Options()};
        CHECK(false);
    } catch (const floe::Error&) {
    }

    std::vector<std::thread> threads;
    for (int at = 0; at < 4; at++) {
        threads.emplace_back([&cache] {
            for (int at = 0; at < 1000; at++) {
                auto key = "page " + std::to_string(at % 50);
                auto value = cache.get_or_load(key, [&] { return key; });
                if (value.text() != key) std::abort();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    cache.clear();
    cache.reclaim();
    CHECK(cache.size() == 0 && cache.stats().loads == 51);
    std::cout << "done\n";
}
