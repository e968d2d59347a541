// Runs as lines of JSON, and the table of many runs.

#ifndef FLOE_YCSB_REPORT_HPP
#define FLOE_YCSB_REPORT_HPP

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "run.hpp"

namespace ycsb {

/// A run as it is printed.
struct Line {
  Cell cell;
  int round = 0;
  Measured measured;
};

inline std::string Json(const Line& line) {
  const Cell& cell = line.cell;
  const Measured& all = line.measured;
  char text[1024];
  std::snprintf(text, sizeof text,
                "{\"workload\":\"%c\",\"cache_percent\":%d,\"threads\":%zu,\"cache\":\"%s\","
                "\"round\":%d,\"operations_per_second\":%.1f,\"p50_us\":%.2f,\"p99_us\":%.2f,"
                "\"p999_us\":%.2f,\"hit_ratio\":%.5f,\"thread_us\":%.4f,\"process_us\":%.4f,"
                "\"rss_mib\":%.1f,\"mistakes\":%llu}",
                cell.workload, cell.percent, cell.threads, cell.cache.c_str(), line.round,
                all.operations_per_second, all.p50_us, all.p99_us, all.p999_us, all.hit_ratio,
                all.thread_us, all.process_us, all.rss_mib,
                static_cast<unsigned long long>(all.mistakes));
  return text;
}

/// Reads a line that `Json` has written; false if it is none.
inline bool Parse(const std::string& text, Line& line) {
  char cache[64];
  unsigned long long mistakes;
  Measured& all = line.measured;
  const int read = std::sscanf(
      text.c_str(),
      "{\"workload\":\"%c\",\"cache_percent\":%d,\"threads\":%zu,\"cache\":\"%63[^\"]\","
      "\"round\":%d,\"operations_per_second\":%lf,\"p50_us\":%lf,\"p99_us\":%lf,"
      "\"p999_us\":%lf,\"hit_ratio\":%lf,\"thread_us\":%lf,\"process_us\":%lf,"
      "\"rss_mib\":%lf,\"mistakes\":%llu}",
      &line.cell.workload, &line.cell.percent, &line.cell.threads, cache, &line.round,
      &all.operations_per_second, &all.p50_us, &all.p99_us, &all.p999_us, &all.hit_ratio,
      &all.thread_us, &all.process_us, &all.rss_mib, &mistakes);
  if (read != 14) return false;
  line.cell.cache = cache;
  all.mistakes = mistakes;
  return true;
}

/// A median and an interval that holds it with 95 % confidence, or, of fewer than six values, all.
struct Interval {
  double low = 0, median = 0, high = 0;
};

inline Interval IntervalOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t count = values.size();
  // The median lies below the k-th smallest value if fewer than k values lie below the median.
  size_t rank = 0;
  double chance = 1;
  for (size_t toss = 0; toss < count; toss++) chance /= 2;
  double below = chance;
  while (rank + 1 < (count + 1) / 2 && 2 * (below + chance * static_cast<double>(count - rank) /
                                                        static_cast<double>(rank + 1)) <= 0.05) {
    chance *= static_cast<double>(count - rank) / static_cast<double>(rank + 1);
    below += chance;
    rank++;
  }
  const double median = (values[(count - 1) / 2] + values[count / 2]) / 2;
  return {values[rank], median, values[count - 1 - rank]};
}

/// Prints a row for each cell: medians over its rounds, and the ratios to the first of the caches,
/// in the order of `kCaches` and then of the lines, in the same round.
inline void PrintTable(const std::vector<Line>& lines) {
  using Place = std::tuple<char, int, size_t>;
  std::map<Place, std::map<int, std::map<std::string, Measured>>> rounds;
  for (const Line& line : lines) {
    const Cell& cell = line.cell;
    rounds[{cell.workload, cell.percent, cell.threads}][line.round][cell.cache] = line.measured;
  }
  std::vector<std::string> caches;
  for (const char* cache : kCaches) {
    const auto is_it = [&](const Line& line) { return line.cell.cache == cache; };
    if (std::any_of(lines.begin(), lines.end(), is_it)) caches.push_back(cache);
  }
  for (const Line& line : lines) {  // and those of other names
    const std::string& cache = line.cell.cache;
    if (std::find(caches.begin(), caches.end(), cache) == caches.end()) caches.push_back(cache);
  }
  if (caches.empty()) return;
  std::printf("%-8s %5s %7s  %-18s %6s %7s %7s %7s %8s %9s %9s %7s  %-18s %-18s\n", "workload",
              "cache", "threads", "", "rounds", "hit %", "p50 us", "p99 us", "p99.9 us",
              "ops/s", "cpu us/op", "MiB", "ops/s, ratio", "cpu us/op, ratio");
  for (const auto& [place, of_rounds] : rounds) {
    for (const std::string& cache : caches) {
      std::vector<double> column[7], faster, dearer;
      for (const auto& [round, of_caches] : of_rounds) {
        const auto own = of_caches.find(cache), first = of_caches.find(caches[0]);
        if (own == of_caches.end()) continue;
        const Measured& all = own->second;
        const double values[] = {all.hit_ratio * 100, all.p50_us,     all.p99_us, all.p999_us,
                                 all.operations_per_second, all.process_us, all.rss_mib};
        for (size_t at = 0; at < 7; at++) column[at].push_back(values[at]);
        if (first == of_caches.end()) continue;
        faster.push_back(all.operations_per_second / first->second.operations_per_second);
        dearer.push_back(all.process_us / first->second.process_us);
      }
      if (column[0].empty()) continue;
      const auto median = [&](size_t at) { return IntervalOf(column[at]).median; };
      const auto ratio = [](const std::vector<double>& of) {
        const Interval all = IntervalOf(of);
        char text[64];
        std::snprintf(text, sizeof text, "%.2f (%.2f-%.2f)", all.median, all.low, all.high);
        return std::string(text);
      };
      std::printf("%-8c %4d%% %7zu  %-18s %6zu %7.2f %7.1f %7.1f %8.1f %9.0f %9.2f %7.0f"
                  "  %-18s %-18s\n",
                  std::get<0>(place), std::get<1>(place), std::get<2>(place), cache.c_str(),
                  column[0].size(), median(0), median(1), median(2), median(3), median(4),
                  median(5), median(6), ratio(faster).c_str(), ratio(dearer).c_str());
    }
  }
}

}  // namespace ycsb

#endif  // FLOE_YCSB_REPORT_HPP
