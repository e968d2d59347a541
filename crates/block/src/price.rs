//! The price of fetches: the time of a backing device's operation, and of a sector.
//!
//! A straight line through the times of operations by their length: its rise is the time of a
//! sector, the rest that of an operation. Old operations fade. Operations of one length alone say
//! nothing of the rise, and few operations little: then an operation costs as much as a usual
//! number of sectors. A fetched sector is read from the backing device and written to the cache
//! device, where later hits wait for it: it costs both.

use crate::geometry::SECTOR_BYTES;

/// Sectors that take as long as an operation, where that is not known: 256 KiB, as on NVMe drives
/// and networked volumes. Disks have four times as much, SATA drives half.
const USUAL: f64 = 64.0;

/// Bounds of what is believed: from 16 KiB to 8 MiB.
const LEAST: f64 = 4.0;
const MOST: f64 = 2048.0;

/// Operations, faded, from which a line is drawn, and the share kept at each further one.
const LEAST_OPERATIONS: f64 = 32.0;
const LEFT: f64 = 1.0 - 1.0 / 1024.0;

/// Weight of the usual price, in operations that are spread over [`USUAL`] sectors.
const USUAL_OPERATIONS: f64 = 1.0;

/// The price of fetches: an operation's in sectors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Price(f64);

impl Default for Price {
    fn default() -> Self {
        Self(USUAL)
    }
}

impl Price {
    /// Returns a price.
    #[cfg(test)]
    pub(crate) fn of(sectors_an_operation: f64) -> Self {
        Self(sectors_an_operation)
    }

    /// Returns the sectors that take as long as an operation.
    pub(crate) fn sectors_an_operation(self) -> f64 {
        self.0
    }
}

/// The times of operations, faded: number, sums, and sums of products, of sectors and nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line {
    number: f64,
    sectors: f64,
    ns: f64,
    squares: f64,
    products: f64,
}

impl Line {
    /// Adds an operation.
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
        sums.into_iter().zip(added).for_each(|(sum, added)| *sum = *sum * LEFT + added);
    }

    /// Returns the nanoseconds of an operation and of a sector; `None` where there are few.
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

    /// Returns the price of fetches with these reads, of which data is stored by `writes`.
    pub(crate) fn price(&self, writes: &Self) -> Price {
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

    #[test]
    fn reads_of_different_lengths_tell_the_price() {
        // A disk: 8 ms, 150 MB/s, so an operation costs 293 sectors.
        let mut disk = Line::default();
        for read in 0..2000u64 {
            let bytes = 4096 << (read % 7);
            let noise = 1.0 + 0.3 * f64::from((read * 37 % 11) as u32 % 3) - 0.3;
            disk.add(bytes, 8e6 * noise + bytes as f64 / 0.15);
        }
        let price = disk.price(&Line::default()).sectors_an_operation();
        assert!((230.0..360.0).contains(&price), "{price}");
    }

    #[test]
    fn reads_of_one_length_leave_the_usual_price() {
        let mut reads = Line::default();
        (0..100).for_each(|_| reads.add(65536, 1e6));
        assert!((reads.price(&Line::default()).sectors_an_operation() - USUAL).abs() < 1.0);
        let mut few = Line::default();
        (0..20).for_each(|read| few.add(4096 * read, 1e6));
        assert_eq!(few.price(&Line::default()), Price::default());
    }

    #[test]
    fn a_sector_costs_its_store_as_well() {
        // 85 µs and 1.3 µs a sector to read, 4 µs a sector to write.
        let (mut reads, mut writes) = (Line::default(), Line::default());
        for at in 0..4000u64 {
            let sectors = 1 + at % 64;
            reads.add(4096 * sectors, 85e3 + 1.3e3 * sectors as f64);
            writes.add(4096 * sectors, 20e3 + 4e3 * sectors as f64);
        }
        let price = reads.price(&writes).sectors_an_operation();
        assert!((price - 85.0 / 5.3).abs() < 0.5, "{price}");
    }

    #[test]
    fn a_price_stays_within_bounds_however_reads_vary() {
        let mut reads = Line::default();
        (0..100u64).for_each(|read| reads.add(4096 * (1 + read), 1e8 / (1.0 + read as f64)));
        assert_eq!(reads.price(&Line::default()).sectors_an_operation(), MOST);
        let mut reads = Line::default();
        (0..1000u64).for_each(|read| reads.add(4096 * (1 + read % 300), 1e6 * read as f64));
        let price = reads.price(&Line::default()).sectors_an_operation();
        assert!((LEAST..=MOST).contains(&price), "{price}");
    }
}
