//! The price of a fetch: an operation of a backing device, compared with the sectors that it moves.
//!
//! The time of a read depends on its own size, and on what it waits for. So [`Reads`] fits four
//! parts of it: the time of any read, of each of its sectors, of each operation that was under way
//! before, and of each of their sectors. A device that moves one operation after the other, such as
//! a volume with a limited bandwidth, has a time for what is under way; one that works on many at
//! once has none. What a fetch makes others wait counts as its own time does: a volume that is busy
//! with its bytes gains nothing by larger fetches.

use crate::geometry::SECTOR_BYTES;
use crate::shard::fills::FillTimes;

/// Default price of an operation: it takes as long as this many sectors (256 KiB), as on NVMe
/// drives and networked volumes. Disks have four times as much, SATA drives half.
const USUAL: f64 = 64.0;

/// Bounds of a measured price in sectors: from 16 KiB to 8 MiB.
const LEAST: f64 = 4.0;
const MOST: f64 = 2048.0;

/// Number of recent operations needed to fit a line, and the share of the sums that is kept at each
/// further one.
const LEAST_OPERATIONS: f64 = 32.0;
const KEPT_PER_OPERATION: f64 = 1.0 - 1.0 / 1024.0;

/// Weight of the default price in the fit, in operations spread over [`USUAL`] sectors.
const USUAL_OPERATIONS: f64 = 1.0;

/// The price of an operation of a device: the number of sectors that take as long to move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Price(f64);

impl Default for Price {
    fn default() -> Self {
        Self(USUAL)
    }
}

impl Price {
    #[cfg(test)]
    pub(crate) fn of(sectors_an_operation: f64) -> Self {
        Self(sectors_an_operation)
    }

    /// Returns the number of sectors that take as long as an operation.
    pub(crate) fn sectors_an_operation(self) -> f64 {
        self.0
    }
}

/// A fitted line: the time of an operation by its size. Has the number of recent operations, their
/// sums, and sums of products, of sectors and nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line {
    number: f64,
    sectors: f64,
    ns: f64,
    squares: f64,
    products: f64,
}

impl Line {
    /// Adds an operation of `bytes` bytes that took `ns` nanoseconds.
    pub(crate) fn add(&mut self, bytes: u64, ns: f64) {
        let sectors = bytes as f64 / SECTOR_BYTES as f64;
        let added = [1.0, sectors, ns, sectors * sectors, sectors * ns];
        let sums = [
            &mut self.number,
            &mut self.sectors,
            &mut self.ns,
            &mut self.squares,
            &mut self.products,
        ];
        sums.into_iter()
            .zip(added)
            .for_each(|(sum, added)| *sum = *sum * KEPT_PER_OPERATION + added);
    }

    /// Returns the nanoseconds of an operation and of each sector; `None` with too few operations.
    fn operation_and_sector(&self) -> Option<(f64, f64)> {
        if self.number < LEAST_OPERATIONS {
            return None;
        }
        let (sectors, ns) = (self.sectors / self.number, self.ns / self.number);
        let spread = self.squares - self.number * sectors * sectors;
        let together = self.products - self.number * sectors * ns;
        // As if some operations had taken as long as at the usual price.
        let usual_rise = ns / (USUAL + sectors);
        let usual_spread = USUAL_OPERATIONS * USUAL * USUAL;
        let rise = (together + usual_spread * usual_rise) / (spread + usual_spread);
        Some((ns - rise * sectors, rise.max(0.0)))
    }
}

/// Number of the parts of a time that grow with something: sectors, operations and sectors ahead.
const PARTS: usize = 3;

/// Steps of the fit: each part is fitted in turn, and soon moves no more.
const STEPS: usize = 16;

/// The operations and sectors under way on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Ahead {
    pub(crate) operations: u64,
    pub(crate) sectors: u64,
}

/// The times of a backing device's reads, by their size and by what was under way before them. Has
/// the number of recent reads, their sums, and sums of products.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reads {
    number: f64,
    ns: f64,
    /// Sums of a read's sectors, and of the operations and sectors ahead of it.
    sums: [f64; PARTS],
    products: [[f64; PARTS]; PARTS],
    /// Sums of their products with the time.
    ns_products: [f64; PARTS],
}

/// The parts of an operation's time in nanoseconds: its own, and what waits for others adds.
#[derive(Debug, Clone, Copy)]
struct Fit {
    operation: f64,
    sector: f64,
    operation_ahead: f64,
    sector_ahead: f64,
}

impl Reads {
    /// Adds a read of `bytes` bytes that began with `ahead` under way and took `ns` nanoseconds.
    pub(crate) fn add(&mut self, bytes: u64, ahead: Ahead, ns: f64) {
        let sectors = bytes as f64 / SECTOR_BYTES as f64;
        let read = [sectors, ahead.operations as f64, ahead.sectors as f64];
        let add = |sum: &mut f64, added: f64| *sum = *sum * KEPT_PER_OPERATION + added;
        add(&mut self.number, 1.0);
        add(&mut self.ns, ns);
        for (at, part) in read.into_iter().enumerate() {
            add(&mut self.sums[at], part);
            add(&mut self.ns_products[at], part * ns);
            for (other, sum) in read.into_iter().zip(&mut self.products[at]) {
                add(sum, part * other);
            }
        }
    }

    /// Fits the time of an operation, and of each of its sectors and of the operations and sectors
    /// ahead of it; `None` with too few operations.
    fn fit(&self) -> Option<Fit> {
        if self.number < LEAST_OPERATIONS {
            return None;
        }
        let ns = self.ns / self.number;
        let means = self.sums.map(|sum| sum / self.number);
        // As if some reads had taken as long as at the usual price, whatever was ahead.
        let usual = [ns / (USUAL + means[0]), 0.0, 0.0];
        let spreads = [USUAL * USUAL, 1.0, USUAL * USUAL].map(|spread| USUAL_OPERATIONS * spread);
        let mut rises = usual;
        for _ in 0..STEPS {
            for at in 0..PARTS {
                let others = (0..PARTS).filter(|&other| other != at).map(|other| {
                    let mean = self.number * means[at] * means[other];
                    rises[other] * (self.products[at][other] - mean)
                });
                let together = self.ns_products[at] - self.number * means[at] * ns;
                let spread = self.products[at][at] - self.number * means[at] * means[at];
                let rise = together - others.sum::<f64>() + spreads[at] * usual[at];
                rises[at] = (rise / (spread + spreads[at])).max(0.0);
            }
        }
        let [sector, operation_ahead, sector_ahead] = rises;
        let grown: f64 = means.iter().zip(rises).map(|(mean, rise)| mean * rise).sum();
        Some(Fit { operation: (ns - grown).max(0.0), sector, operation_ahead, sector_ahead })
    }

    /// Returns the nanoseconds of an operation and of each sector, for itself and for those that
    /// wait behind it; `None` with too few reads.
    fn operation_and_sector(&self) -> Option<(f64, f64)> {
        let fit = self.fit()?;
        let behind = self.sums[1] / self.number; // as many as were ahead: it is ahead of those
        let operation = fit.operation + behind * fit.operation_ahead;
        Some((operation, fit.sector + behind * fit.sector_ahead))
    }

    /// Returns the times that bound fills, by these reads of the backing devices and these writes
    /// to the cache device.
    pub(crate) fn fill_times(&self, writes: &Self) -> FillTimes {
        match writes.fit() {
            Some(fit) if self.number >= LEAST_OPERATIONS => FillTimes {
                operation_ns: fit.operation_ahead,
                sector_ns: fit.sector_ahead,
                miss_ns: self.ns / self.number,
            },
            _ => FillTimes::default(),
        }
    }

    /// Returns the price of fetches by these reads, whose data is then stored in the cache by
    /// `writes`.
    pub(crate) fn price(&self, writes: &Line) -> Price {
        let Some((operation, sector)) = self.operation_and_sector() else {
            return Price::default();
        };
        let stored = writes.operation_and_sector().map_or(0.0, |(_, sector)| sector);
        let sector = (sector + stored).max(f64::MIN_POSITIVE);
        Price((operation / sector).clamp(LEAST, MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns reads of 4 to 256 KiB, with up to `most` operations of such lengths ahead. `time` is
    /// given the sectors of a read, and what was ahead.
    fn reads(most: u64, time: impl Fn(f64, Ahead) -> f64) -> Reads {
        let mut reads = Reads::default();
        for read in 0..4000 {
            let sectors = |at: u64| 1 << (floe_policy::mix(at) % 7);
            let operations = floe_policy::mix(!read) % (most + 1);
            let ahead = Ahead {
                operations,
                sectors: (0..operations).map(|at| sectors(read + 9 * at)).sum(),
            };
            let sectors = sectors(7 * read);
            let noise = 1.0 + 0.1 * (f64::from((read * 37 % 11) as u32 % 3) - 1.0);
            reads.add(SECTOR_BYTES * sectors, ahead, time(sectors as f64, ahead) * noise);
        }
        reads
    }

    fn price(most: u64, time: impl Fn(f64, Ahead) -> f64) -> f64 {
        reads(most, time).price(&Line::default()).sectors_an_operation()
    }

    /// Returns the time that these times of the cache device let four fills of eight sectors take.
    fn four_fills_ns(most: u64, time: impl Fn(f64, Ahead) -> f64) -> f64 {
        let (misses, stores) = (reads(8, |_, _| 1e5), reads(most, time));
        let FillTimes { operation_ns, sector_ns, miss_ns } = misses.fill_times(&stores);
        assert!((0.99e5..1.01e5).contains(&miss_ns), "{miss_ns}");
        4.0 * operation_ns + 32.0 * sector_ns
    }

    #[test]
    fn fills_take_as_long_as_they_make_a_write_wait() {
        let one_at_a_time = four_fills_ns(8, |sectors, ahead| {
            25e3 * (1 + ahead.operations) as f64 + 4e3 * (sectors + ahead.sectors as f64)
        });
        assert!((200e3..256e3).contains(&one_at_a_time), "{one_at_a_time} beside 228e3");
        let side_by_side = four_fills_ns(8, |sectors, _| 25e3 + 4e3 * sectors);
        assert!(side_by_side < 12e3, "{side_by_side}");
        let never_two = four_fills_ns(0, |sectors, _| 25e3 + 4e3 * sectors);
        assert!(never_two < 1.0, "{never_two}");
    }

    #[test]
    fn fills_have_no_bound_before_both_devices_are_known() {
        let (few, many) = (Reads::default(), reads(8, |sectors, _| sectors));
        assert_eq!(few.fill_times(&many), FillTimes::default());
        assert_eq!(many.fill_times(&few), FillTimes::default());
    }

    #[test]
    fn reads_of_different_lengths_tell_the_price() {
        // A disk: 8 ms, 150 MB/s, so an operation costs 293 sectors.
        let price = price(0, |sectors, _| 8e6 + 27.3e3 * sectors);
        assert!((250.0..340.0).contains(&price), "{price}");
    }

    #[test]
    fn on_a_disk_that_takes_one_read_after_the_other_all_cost_those_behind_them_alike() {
        let price = price(8, |sectors, ahead| {
            8e6 * (1 + ahead.operations) as f64 + 27.3e3 * (sectors + ahead.sectors as f64)
        });
        assert!((230.0..360.0).contains(&price), "{price}");
    }

    #[test]
    fn bytes_cost_those_behind_them_where_bandwidth_is_limited() {
        // 1 ms for any number of operations at once, and 16 µs a sector, one after the other. Four
        // wait on average.
        let price = price(8, |sectors, ahead| 1e6 + 16e3 * (sectors + ahead.sectors as f64));
        assert!((10.0..16.0).contains(&price), "{price} beside 62.5 alone");
    }

    #[test]
    fn nothing_waits_where_all_is_done_at_once() {
        let price = price(8, |sectors, _| 1e6 + 16e3 * sectors);
        assert!((50.0..70.0).contains(&price), "{price}");
    }

    #[test]
    fn reads_of_one_length_leave_the_usual_price() {
        let mut reads = Reads::default();
        (0..100).for_each(|_| reads.add(65536, Ahead::default(), 1e6));
        assert!((reads.price(&Line::default()).sectors_an_operation() - USUAL).abs() < 1.0);
        let mut few = Reads::default();
        (0..20).for_each(|read| few.add(4096 * read, Ahead::default(), 1e6));
        assert_eq!(few.price(&Line::default()), Price::default());
    }

    #[test]
    fn a_sector_costs_its_store_as_well() {
        // 85 µs and 1.3 µs a sector to read, 4 µs a sector to write.
        let (mut reads, mut writes) = (Reads::default(), Line::default());
        for at in 0..4000u64 {
            let sectors = 1 + at % 64;
            reads.add(4096 * sectors, Ahead::default(), 85e3 + 1.3e3 * sectors as f64);
            writes.add(4096 * sectors, 20e3 + 4e3 * sectors as f64);
        }
        let price = reads.price(&writes).sectors_an_operation();
        assert!((price - 85.0 / 5.3).abs() < 0.5, "{price}");
    }

    #[test]
    fn a_price_stays_within_bounds_however_reads_vary() {
        let times: [fn(u64) -> f64; 4] = [
            |read| 1e8 / (1 + read) as f64,
            |read| 1e6 * read as f64,
            |_| 0.0,
            |read| 1e18 * (read % 2) as f64,
        ];
        for time in times {
            let mut reads = Reads::default();
            for read in 0..1000 {
                let ahead = Ahead { operations: read % 5, sectors: read % 5 * (read % 77) };
                reads.add(4096 * (1 + read % 300), ahead, time(read));
                let price = reads.price(&Line::default()).sectors_an_operation();
                assert!((LEAST..=MOST).contains(&price), "{price}");
            }
        }
    }
}
