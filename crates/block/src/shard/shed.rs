//! Load shedding: a share of the hits on the cache device is read from the backing device instead.
//!
//! Where hits queue at the cache device for longer than the backing device takes, both together
//! serve more than the cache device alone. The driver's owner finds the share that pays
//! ([`floe_policy::shedding`]). Here it is given, and hits are drawn by adding it up, so that the
//! same requests are shed every time.
//!
//! Only data that a backing device has in its newest version is read from there: clean sectors,
//! under the lock of the read. Dirty ones still come from the cache. The directory learns of a shed
//! hit as of any. A shed read that fails is repeated from the cache, so shedding causes no errors.

/// Draws the hits that are shed: one each time the sum of the shares reaches another whole.
#[derive(Debug, Default)]
pub(crate) struct Shed {
    /// The share, in units of 1/2³².
    share: u32,
    sum: u32,
}

impl Shed {
    /// Sets the share of the hits on the cache device that are to be shed, in parts of 2³².
    pub(crate) fn set(&mut self, share: u32) {
        self.share = share;
    }

    /// Returns whether the next hit is to be read from the backing device.
    #[inline]
    pub(crate) fn draw(&mut self) -> bool {
        let is_whole;
        (self.sum, is_whole) = self.sum.overflowing_add(self.share);
        is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_drawn_by_their_share() {
        let mut shed = Shed::default();
        let mut drawn = |share| {
            shed.set(share);
            (0..16).filter(|_| shed.draw()).count()
        };
        assert_eq!([0, 1 << 30, 1 << 31].map(&mut drawn), [0, 4, 8]);
    }
}
