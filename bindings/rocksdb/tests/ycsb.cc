// The choices and checks of the benchmark (bench/ycsb): distributions, mixes, values, tables.

#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../bench/ycsb/generators.hpp"
#include "../bench/ycsb/histogram.hpp"
#include "../bench/ycsb/record.hpp"
#include "../bench/ycsb/report.hpp"
#include "testing.hpp"

namespace {

using namespace ycsb;

constexpr int kDraws = 400'000;

/// Is a count that of so likely an event, within five standard deviations and one in a hundred?
bool Likely(uint64_t count, double chance) {
  const double expected = chance * kDraws;
  const double apart = std::fabs(static_cast<double>(count) - expected);
  return apart < 5 * std::sqrt(expected) + 0.01 * expected;
}

std::vector<double> ZipfChances(uint64_t ranks) {
  std::vector<double> chances(ranks);
  double sum = 0;
  for (uint64_t rank = 0; rank < ranks; rank++) {
    sum += chances[rank] = std::pow(static_cast<double>(rank + 1), -0.99);
  }
  for (double& chance : chances) chance /= sum;
  return chances;
}

/// The method is exact for the first two ranks, and within 12 % for ranges of the others.
void ZipfianRanksAreAsLikelyAsTheyShouldBe() {
  constexpr uint64_t kRanks = 1000;
  Random random(1);
  Zipfian zipfian(kRanks);
  std::vector<uint64_t> counts(kRanks);
  for (int draw = 0; draw < kDraws; draw++) {
    const uint64_t rank = zipfian.Next(random, kRanks);
    CHECK(rank < kRanks);
    counts[rank]++;
  }
  const std::vector<double> chances = ZipfChances(kRanks);
  CHECK(Likely(counts[0], chances[0]) && Likely(counts[1], chances[1]));
  for (uint64_t begin = 2; begin < kRanks; begin *= 3) {
    uint64_t count = 0;
    double chance = 0;
    for (uint64_t rank = begin; rank < std::min(3 * begin, kRanks); rank++) {
      count += counts[rank];
      chance += chances[rank];
    }
    CHECK(std::fabs(static_cast<double>(count) / (chance * kDraws) - 1) < 0.13);
  }
}

void ZipfianRanksThatGrewAreThoseOfAsManyFromTheBeginning() {
  Zipfian grown(10), whole(500);
  Random one(3), other(3);
  grown.Next(one, 300);
  whole.Next(other, 500);
  for (int draw = 0; draw < 1000; draw++) CHECK(grown.Next(one, 500) == whole.Next(other, 500));
}

void TheLatestRecordsAreReadMost() {
  Random random(1);
  Chooser chooser(*WorkloadOf('d'), 100);
  std::map<uint64_t, uint64_t> counts;
  for (int draw = 0; draw < kDraws; draw++) {
    // Records come in during the run.
    const uint64_t present = draw < kDraws / 2 ? 100 : 200;
    const uint64_t record = chooser.Record(random, present);
    CHECK(record < present);
    counts[record]++;
  }
  const double old_share = ZipfChances(100)[0] / 2, new_share = ZipfChances(200)[0] / 2;
  CHECK(Likely(counts[199], new_share));
  CHECK(Likely(counts[99], old_share + ZipfChances(200)[100] / 2));
  CHECK(counts[199] > counts[198] && counts[198] > counts[190] && counts[190] > counts[110]);
}

void OtherWorkloadsReadTheRecordsThatWereLoaded() {
  Random random(1);
  Chooser chooser(*WorkloadOf('e'), 100);
  uint64_t first = 0;
  for (int draw = 0; draw < kDraws; draw++) {
    const uint64_t record = chooser.Record(random, 100'000);
    CHECK(record < 100);
    first += record == 0;
  }
  CHECK(Likely(first, ZipfChances(100)[0]));
}

void ScansHaveAllLengthsEquallyOften() {
  Random random(1);
  std::vector<uint64_t> counts(kLongestScan + 2);
  for (int draw = 0; draw < kDraws; draw++) counts.at(Chooser::ScanLength(random))++;
  CHECK(counts[0] == 0 && counts[kLongestScan + 1] == 0);
  for (uint64_t length = 1; length <= kLongestScan; length++) {
    CHECK(Likely(counts[length], 1.0 / kLongestScan));
  }
}

void WorkloadsMixTheirOperations() {
  for (const Workload& workload : kWorkloads) {
    const int shares[] = {workload.reads, workload.updates, workload.inserts, workload.scans,
                          workload.read_modify_writes};
    Random random(1);
    uint64_t counts[5] = {};
    for (int draw = 0; draw < kDraws; draw++) counts[static_cast<int>(workload.Draw(random))]++;
    int all = 0;
    for (int kind = 0; kind < 5; kind++) {
      const Operation operations[] = {Operation::kRead, Operation::kUpdate, Operation::kInsert,
                                      Operation::kScan, Operation::kReadModifyWrite};
      const uint64_t count = counts[static_cast<int>(operations[kind])];
      CHECK(shares[kind] == 0 ? count == 0 : Likely(count, shares[kind] / 100.0));
      all += shares[kind];
    }
    CHECK(all == 100);
  }
  CHECK(WorkloadOf('a')->name == 'a' && WorkloadOf('g') == nullptr);
}

void KeysDifferAndLieApart() {
  std::set<std::string> keys;
  std::string key(kKeyBytes, ' ');
  uint64_t ascending = 0;
  for (uint64_t number = 0; number < 10'000; number++) {
    const std::string last = key;
    WriteKey(number, &key[0]);
    CHECK(keys.insert(key).second);
    ascending += last < key;
  }
  CHECK(ascending > 4000 && ascending < 6000);
}

void AValueFitsItsRecordAndVersionOnly() {
  std::string value;
  for (const size_t bytes : {kLeastValueBytes, size_t{100}, size_t{1003}}) {
    WriteValue(7, 3, bytes, value);
    CHECK(value.size() == bytes);
    Checker whole(bytes, true), head(bytes, false);
    for (Checker* checker : {&whole, &head}) {
      CHECK(checker->Fits(value, 7, 3, 3) && checker->Fits(value, 7, 0, 9));
      CHECK(!checker->Fits(value, 8, 3, 3));
      CHECK(!checker->Fits(value, 7, 4, 9) && !checker->Fits(value, 7, 0, 2));
      CHECK(!checker->Fits(value.substr(0, bytes - 1), 7, 3, 3));
      CHECK(!checker->Fits("", 7, 0, 9));
    }
    value[bytes - 1]++;
    CHECK(!whole.Fits(value, 7, 3, 3));
  }
}

void VersionsTellWhatAReadMayFind() {
  Versions versions(10);
  CHECK(versions.Begun(4) == 0 && versions.Done(4) == 0);
  versions.Next(4, [&](uint64_t version) {
    CHECK(version == 1 && versions.Begun(4) == 1 && versions.Done(4) == 0);
  });
  CHECK(versions.Begun(4) == 1 && versions.Done(4) == 1 && versions.Done(5) == 0);
}

void QuantilesAreThoseOfTheValues() {
  Histogram half, other;
  CHECK(half.Quantile(0.5) == 0);
  for (uint64_t value = 1; value <= 100'000; value++) (value % 2 == 0 ? half : other).Add(value);
  half.Add(other);
  for (const double part : {0.001, 0.5, 0.99, 0.999, 1.0}) {
    const double quantile = static_cast<double>(half.Quantile(part));
    CHECK(quantile >= part * 100'000 && quantile <= part * 100'000 * 1.04);
  }
  Histogram huge;
  huge.Add(UINT64_MAX);
  huge.Add(5);
  CHECK(huge.Quantile(0.5) == 5 && huge.Quantile(1) == UINT64_MAX);
}

void IntervalsHoldTheMedianWithTheirConfidence() {
  const auto is = [](std::vector<double> values, double low, double median, double high) {
    const Interval all = IntervalOf(values);
    return all.low == low && all.median == median && all.high == high;
  };
  CHECK(is({5}, 5, 5, 5));
  CHECK(is({4, 1, 3, 2}, 1, 2.5, 4));
  // Binomial intervals: with 11 values the 2nd and the 10th, with 20 the 6th and the 15th.
  std::vector<double> values;
  for (int value = 1; value <= 11; value++) values.push_back(value);
  CHECK(is(values, 2, 6, 10));
  for (int value = 12; value <= 20; value++) values.push_back(value);
  CHECK(is(values, 6, 10.5, 15));
}

void ALineIsReadAsItWasWritten() {
  Line line{{'e', 30, 8, "floe-lru"}, 4, {}}, read;
  line.measured.operations_per_second = 12345.5;
  line.measured.rss_mib = 77;
  line.measured.mistakes = 3;
  CHECK(Parse(Json(line), read));
  CHECK(Json(read) == Json(line) && read.cell.cache == "floe-lru");
  CHECK(!Parse("{}", read));
}

}  // namespace

int main() {
  ZipfianRanksAreAsLikelyAsTheyShouldBe();
  ZipfianRanksThatGrewAreThoseOfAsManyFromTheBeginning();
  TheLatestRecordsAreReadMost();
  OtherWorkloadsReadTheRecordsThatWereLoaded();
  ScansHaveAllLengthsEquallyOften();
  WorkloadsMixTheirOperations();
  KeysDifferAndLieApart();
  AValueFitsItsRecordAndVersionOnly();
  VersionsTellWhatAReadMayFind();
  QuantilesAreThoseOfTheValues();
  IntervalsHoldTheMedianWithTheirConfidence();
  ALineIsReadAsItWasWritten();
  std::puts("done");
}
