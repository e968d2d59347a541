// YCSB's core workloads A to F on RocksDB, with Floe's block cache and RocksDB's own.
//
//   cargo build --release -p floe-c
//   c++ -std=c++17 -O2 -pthread -I bindings/c/include -I bindings/rocksdb/include
//       bindings/rocksdb/bench/ycsb.cc target/release/libfloe_c.a -lrocksdb -lm -ldl -o ycsb
//   ./ycsb --help
//
// Each run is a process of its own, on a fresh copy of one loaded database, with direct reads. The
// caches take turns in each round, and ratios are of runs in the same round.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "ycsb/report.hpp"
#include "ycsb/run.hpp"

namespace {

using namespace ycsb;

constexpr const char* kHelp =
    R"(YCSB on RocksDB with several block caches.

  --folder DIR         where the database is loaded, and kept for the next time (./ycsb-data)
  --workloads a,b,…    core workloads (a,b,c,d,e,f)
  --caches NAME,…      floe, floe-lru, floe-lru-freezing, lru, hyper-clock, hyper-clock-auto
                       with RocksDB 8.7 and later (all); lru-plain, which is lru as one list,
                       without a pool for blocks that were hit; floe://OPTION=VALUE;…; ratios are
                       to the first of these. With a second tier: lru+compressed, which is
                       RocksDB's in memory, and on flash lru+everything, lru+popularity, lru+obp
  --tier N             size of second tiers in percent of the data (30)
  --tier-folder DIR    where second tiers on flash are: on a faster drive (as --folder)
  --percents N,…       capacities of the block cache in percent of the data (10,30,60,110)
  --threads N,…        threads (1,2,4,8)
  --records N          records (10000000)
  --value-bytes N      bytes of a value (1000)
  --operations N       operations that are measured, and as many before; a tenth for workload e
                       (1000000)
  --rounds N           rounds, in which all caches take turns (11)
  --first-round N      the number of the first round, for more rounds later (0)
  --seed N             seed of all choices (1)
  --uncache N          has RocksDB 9.4 and later erase blocks of obsolete files: its
                       uncache_aggressiveness (0)
  --verify             compares all bytes of the values read
  --buffered           reads by way of the page cache, for folders without direct reads
  --json               prints each run as a line of JSON, rather than the table
  --table FILE         prints the table of such lines, and runs nothing

All records are read once before the operations. A value that is not of its record, or of a version
that it cannot have, makes the program fail.
)";

[[noreturn]] void Fail(const std::string& why) {
  std::cerr << "ycsb: " << why << '\n';
  std::exit(2);
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream rest(list);
  for (std::string part; std::getline(rest, part, ',');) parts.push_back(part);
  return parts;
}

uint64_t NumberOf(const std::string& text, uint64_t least) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text[0] == '-' || *end != '\0' || number < least) {
    Fail("not a number, or less than " + std::to_string(least) + ": " + text);
  }
  return number;
}

struct Options {
  Settings settings;
  std::vector<char> workloads{'a', 'b', 'c', 'd', 'e', 'f'};
  std::vector<std::string> caches{std::begin(kCaches), std::end(kCaches)};
  std::vector<int> percents{10, 30, 60, 110};
  std::vector<size_t> threads{1, 2, 4, 8};
  int rounds = 11;
  int first_round = 0;
  bool json = false;
  std::string table;
};

Options OptionsOf(int count, char** arguments) {
  Options all;
  all.settings.folder = "ycsb-data";
  all.settings.records = 10'000'000;
  for (int at = 1; at < count; at++) {
    const std::string name = arguments[at];
    if (name == "--help") {
      std::cout << kHelp;
      std::exit(0);
    }
    bool* const flag = name == "--verify"     ? &all.settings.verify
                       : name == "--buffered" ? &all.settings.buffered
                       : name == "--json"     ? &all.json
                                              : nullptr;
    if (flag != nullptr) {
      *flag = true;
      continue;
    }
    if (at + 1 == count) Fail(name + " is unknown or lacks its value; see --help");
    const std::string value = arguments[++at];
    const auto number = [&](uint64_t least) { return NumberOf(value, least); };
    if (name == "--folder") all.settings.folder = value;
    else if (name == "--records") all.settings.records = number(2);
    else if (name == "--value-bytes") all.settings.value_bytes = number(kLeastValueBytes);
    else if (name == "--operations") all.settings.operations = number(1);
    else if (name == "--seed") all.settings.seed = number(0);
    else if (name == "--tier") all.settings.tier = number(1);
    else if (name == "--tier-folder") all.settings.tier_folder = value;
    else if (name == "--uncache") all.settings.uncache = number(0);
    else if (name == "--rounds") all.rounds = static_cast<int>(number(1));
    else if (name == "--first-round") all.first_round = static_cast<int>(number(0));
    else if (name == "--table") all.table = value;
    else if (name == "--caches") all.caches = Split(value);
    else if (name == "--workloads") {
      all.workloads.clear();
      for (const std::string& each : Split(value)) {
        if (each.size() != 1 || WorkloadOf(each[0]) == nullptr) Fail("no workload " + each);
        all.workloads.push_back(each[0]);
      }
    } else if (name == "--percents") {
      all.percents.clear();
      for (const auto& each : Split(value)) {
        all.percents.push_back(static_cast<int>(NumberOf(each, 1)));
      }
    } else if (name == "--threads") {
      all.threads.clear();
      for (const std::string& each : Split(value)) all.threads.push_back(NumberOf(each, 1));
    } else {
      Fail("no option " + name + "; see --help");
    }
  }
  return all;
}

/// Has a process of its own do something and returns what that says; ends the program if it fails.
/// This process must have one thread only: else the child could find the allocator locked for ever.
std::string InProcess(const std::function<std::string()>& work) {
  int ends[2];
  if (pipe(ends) != 0) Fail("no pipe");
  const auto threads = std::filesystem::directory_iterator("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) != 1) Fail("other threads run beside a fork");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) Fail("no process");
  if (child == 0) {
    close(ends[0]);
    const std::string said = work();
    const bool whole =
        write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    std::_Exit(whole ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char part[4096];
  for (ssize_t read_now; (read_now = read(ends[0], part, sizeof part)) > 0;) {
    said.append(part, static_cast<size_t>(read_now));
  }
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    std::cerr << "ycsb: a run failed\n";
    std::exit(1);
  }
  return said;
}

/// Ends the program if a cache cannot be made. Caches may start threads, so a child makes them.
void CheckCaches(const std::vector<std::string>& names, const std::string& folder) {
  if (names.empty()) Fail("--caches names none");
  std::filesystem::create_directories(folder);
  const std::string missing = InProcess([&] {
    for (const std::string& name : names) {
      const Tier tier{folder + "/tier", 64 << 20};
      std::remove(tier.path.c_str());
      if (NewCache(name, 1 << 20, tier) == nullptr) return name;
    }
    return std::string();
  });
  if (!missing.empty()) Fail("no cache " + missing);
}

/// Loads the database unless the folder has it already.
void LoadOnce(const Settings& settings) {
  const std::filesystem::path folder = settings.folder;
  const std::string wanted =
      std::to_string(settings.records) + " records of " + std::to_string(settings.value_bytes);
  std::string found;
  std::getline(std::ifstream(folder / "what"), found);
  if (found == wanted) return;
  std::filesystem::create_directories(folder);
  std::filesystem::remove_all(folder / "loaded");
  std::cerr << "ycsb: loading " << wanted << " bytes\n";
  InProcess([&] {
    Load(folder / "loaded", settings.records, settings.value_bytes);
    return std::string();
  });
  std::ofstream(folder / "what") << wanted << '\n';
}

Line RunOnce(const Options& options, const Cell& cell, int round) {
  Settings settings = options.settings;
  settings.seed += static_cast<uint64_t>(round);  // the same choices for all caches of a round
  const std::filesystem::path copy = std::filesystem::path(settings.folder) / "copy";
  std::filesystem::remove_all(copy);
  Line line{cell, round, {}};
  const std::string text = InProcess([&] {
    line.measured = Run(settings, cell, copy);
    return Json(line);
  });
  std::filesystem::remove_all(copy);
  if (!Parse(text, line)) Fail("a run said: " + text);
  if (options.json) std::cout << text << std::endl;
  if (line.measured.mistakes > 0) {
    std::cerr << "ycsb: wrong values were read: " << text << '\n';
    std::exit(1);
  }
  return line;
}

std::vector<Line> Read(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) Fail("cannot read " + file);
  std::vector<Line> lines;
  for (std::string text; std::getline(stream, text);) {
    lines.emplace_back();
    if (!Parse(text, lines.back())) Fail("not a run: " + text);
  }
  return lines;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = OptionsOf(count, arguments);
  if (!options.table.empty()) {
    PrintTable(Read(options.table));
    return 0;
  }
  CheckCaches(options.caches, TierFolder(options.settings));
  LoadOnce(options.settings);
  std::vector<Line> lines;
  for (int round = options.first_round; round < options.first_round + options.rounds; round++) {
    for (const char workload : options.workloads) {
      for (const int percent : options.percents) {
        for (const size_t threads : options.threads) {
          for (size_t at = 0; at < options.caches.size(); at++) {
            // Another one is first in each round.
            const size_t turn = (at + static_cast<size_t>(round)) % options.caches.size();
            lines.push_back(RunOnce(
                options, {workload, percent, threads, options.caches[turn]}, round));
          }
        }
      }
    }
  }
  if (!options.json) PrintTable(lines);
}
