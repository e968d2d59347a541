// Floe for C++17: owners that free what they own, and exceptions in place of statuses.
//
//     floe::Cache cache(floe::Options().capacity(10'000).policy("s3-fifo"));
//     cache.insert("key", "value");
//     if (auto value = cache.get("key")) std::cout << value->text();
#ifndef FLOE_HPP
#define FLOE_HPP

#include "floe.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace floe {

// A call that failed, with the library's message.
class Error : public std::runtime_error {
public:
    explicit Error(floe_status status)
        : std::runtime_error(floe_error_message()), status_(status) {}
    floe_status status() const noexcept { return status_; }

private:
    floe_status status_;
};

// Throws unless a call succeeded.
inline void check(floe_status status) {
    if (status != FLOE_STATUS_OK) throw Error(status);
}

// Options of a cache, to be chained.
class Options {
public:
    Options() : options_(floe_options_new()) {
        if (!options_) throw Error(FLOE_STATUS_PANICKED);
    }
    Options& capacity(std::size_t entries) {
        return set(floe_options_set_capacity(get(), entries));
    }
    Options& weight_capacity(std::uint64_t weight) {
        return set(floe_options_set_weight_capacity(get(), weight));
    }
    Options& policy(const std::string& name) {
        return set(floe_options_set_policy(get(), name.c_str()));
    }
    Options& admission(const std::string& name) {
        return set(floe_options_set_admission(get(), name.c_str()));
    }
    Options& time_to_live_ms(std::uint64_t ms) {
        return set(floe_options_set_time_to_live_ms(get(), ms));
    }
    Options& time_to_idle_ms(std::uint64_t ms) {
        return set(floe_options_set_time_to_idle_ms(get(), ms));
    }
    Options& shards(std::size_t shards) { return set(floe_options_set_shards(get(), shards)); }
    Options& freezing(bool freezing) { return set(floe_options_set_freezing(get(), freezing)); }
    floe_options* get() const noexcept { return options_.get(); }

private:
    struct Free {
        void operator()(floe_options* options) const noexcept { floe_options_free(options); }
    };
    Options& set(floe_status status) {
        check(status);
        return *this;
    }
    std::unique_ptr<floe_options, Free> options_;
};

// A value that is kept as long as this object is there, by whatever thread.
class Value {
public:
    explicit Value(floe_value* value) noexcept : value_(value) {}
    const void* data() const noexcept { return floe_value_data(value_.get()); }
    std::size_t size() const noexcept { return floe_value_len(value_.get()); }
    std::string_view text() const noexcept {
        return {static_cast<const char*>(data()), size()};
    }

private:
    struct Release {
        void operator()(floe_value* value) const noexcept { floe_value_release(value); }
    };
    std::unique_ptr<floe_value, Release> value_;
};

// A cache, which all threads may use at once.
class Cache {
public:
    explicit Cache(const Options& options) : cache_(floe_cache_new(options.get())) {
        if (!cache_) throw Error(FLOE_STATUS_INVALID);
    }

    // Inserts a copy. A charge of 0 is the length of key and value, a time of 0 the cache's.
    void insert(std::string_view key, std::string_view value, std::uint32_t charge = 0,
                std::uint64_t live_ms = 0) {
        check(floe_insert_for(get(), key.data(), key.size(), value.data(), value.size(), charge,
                              live_ms));
    }

    // Looks a key up and keeps its value.
    std::optional<Value> get(std::string_view key) const {
        floe_value* value = nullptr;
        floe_status status = floe_get(get(), key.data(), key.size(), &value);
        if (status == FLOE_STATUS_NOT_FOUND) return std::nullopt;
        check(status);
        return Value(value);
    }

    // Looks a key up and shows its value to a function; false if it is not there. The fastest way:
    // nothing is locked or copied.
    template <class Read>
    bool read(std::string_view key, Read&& read) const {
        struct Call {
            Read& read;
            std::exception_ptr thrown;
        } call{read, nullptr};
        auto show = [](void* context, const void* data, std::size_t len) noexcept {
            auto& call = *static_cast<Call*>(context);
            try {
                call.read(std::string_view(static_cast<const char*>(data), len));
            } catch (...) {
                call.thrown = std::current_exception();
            }
        };
        floe_status status = floe_read(get(), key.data(), key.size(), show, &call);
        if (call.thrown) std::rethrow_exception(call.thrown);
        if (status == FLOE_STATUS_NOT_FOUND) return false;
        check(status);
        return true;
    }

    // Looks a key up and, if it is not there, loads it: once for all threads that ask meanwhile.
    // An exception of the loader's arrives at the caller that ran it.
    Value get_or_load(std::string_view key, const std::function<std::string()>& load) {
        struct Call {
            const std::function<std::string()>& load;
            std::exception_ptr thrown;
        } call{load, nullptr};
        auto run = [](void* context, const void*, std::size_t, floe_loaded* loaded) noexcept {
            auto& call = *static_cast<Call*>(context);
            try {
                auto text = std::make_unique<std::string>(call.load());
                loaded->data = text->data();
                loaded->len = text->size();
                loaded->context = text.release();
                loaded->free_data = [](void*, std::size_t, void* context) {
                    delete static_cast<std::string*>(context);
                };
                return std::int32_t{0};
            } catch (...) {
                call.thrown = std::current_exception();
                return std::int32_t{1};
            }
        };
        floe_value* value = nullptr;
        floe_status status =
            floe_get_or_load(get(), key.data(), key.size(), run, &call, &value, nullptr);
        if (call.thrown) std::rethrow_exception(call.thrown);
        check(status);
        return Value(value);
    }

    // Removes a key; false if it is not there.
    bool remove(std::string_view key) {
        floe_status status = floe_remove(get(), key.data(), key.size());
        if (status == FLOE_STATUS_NOT_FOUND) return false;
        check(status);
        return true;
    }

    bool contains(std::string_view key) const {
        return floe_contains(get(), key.data(), key.size());
    }
    std::size_t size() const { return floe_len(get()); }
    void clear() { check(floe_clear(get())); }
    void reclaim() { check(floe_reclaim(get())); }
    floe_stats stats() const {
        floe_stats stats;
        check(floe_cache_stats(get(), &stats, sizeof stats));
        return stats;
    }
    floe_cache* get() const noexcept { return cache_.get(); }

private:
    struct Free {
        void operator()(floe_cache* cache) const noexcept { floe_cache_free(cache); }
    };
    std::unique_ptr<floe_cache, Free> cache_;
};

} // namespace floe

#endif // FLOE_HPP
