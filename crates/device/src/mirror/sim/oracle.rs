//! The contents that a sector may have.

/// A sector's history since its last flush.
#[derive(Debug, Clone, Default)]
struct Sector {
    /// The contents that it may have had then.
    base: Vec<u64>,
    /// Later contents, in order, with the step at which they were acknowledged or read.
    later: Vec<(u64, Option<u64>)>,
    /// The number of those up to the last one that was acknowledged.
    acknowledged: usize,
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Oracle {
    /// `None` until the first write: a new mirror may have any content, but always the same.
    sectors: Vec<Option<Sector>>,
}

impl Oracle {
    pub(super) fn new(sectors: usize) -> Oracle {
        Oracle { sectors: vec![None; sectors] }
    }

    /// Locks a sector for one operation; false if it is locked.
    pub(super) fn lock(&mut self, sector: usize) -> bool {
        let sector = self.sectors[sector].get_or_insert_default();
        !std::mem::replace(&mut sector.busy, true)
    }

    pub(super) fn unlock(&mut self, sector: usize) {
        self.of(sector).busy = false;
    }

    fn of(&mut self, sector: usize) -> &mut Sector {
        self.sectors[sector].as_mut().expect("a sector that was locked")
    }

    /// A write begins.
    pub(super) fn begin(&mut self, sector: usize, content: u64) {
        self.of(sector).later.push((content, None));
    }

    /// It was acknowledged.
    pub(super) fn acknowledged(&mut self, sector: usize, step: u64) {
        let sector = self.of(sector);
        sector.later.last_mut().expect("a write has begun").1 = Some(step);
        sector.acknowledged = sector.later.len();
    }

    /// The sector was read.
    pub(super) fn read(&mut self, sector: usize, content: u64, step: u64) -> Result<(), String> {
        let history = self.of(sector);
        let known = history.later.iter().rposition(|(_, step)| step.is_some());
        let mut allowed: Vec<u64> = match known {
            Some(at) => history.later[at..].iter().map(|(content, _)| *content).collect(),
            None => history.later.iter().map(|(content, _)| *content).collect(),
        };
        if known.is_none() {
            allowed.extend(&history.base);
        }
        let is_new = history.base.is_empty() && known.is_none();
        if !allowed.contains(&content) && !is_new {
            return Err(format!("sector {sector} reads as {content}, not as one of {allowed:?}"));
        }
        history.later.push((content, Some(step)));
        Ok(())
    }

    /// A flush that began at this step was acknowledged.
    pub(super) fn flushed(&mut self, begun: u64) {
        for sector in self.sectors.iter_mut().flatten() {
            let before = |(_, step): &(u64, Option<u64>)| step.is_some_and(|step| step <= begun);
            if let Some(at) = sector.later.iter().rposition(before) {
                sector.base = vec![sector.later[at].0];
                sector.later.drain(..=at);
                sector.acknowledged = sector.acknowledged.saturating_sub(at + 1);
            }
        }
    }

    /// The program has ended. A content that was read, and never acknowledged or flushed, may be
    /// gone with a half that has not left. After a power cut, what was not flushed may be lost.
    pub(super) fn crashed(&mut self, power_cut: bool) {
        for sector in self.sectors.iter_mut().flatten() {
            sector.busy = false;
            if !power_cut {
                let later = sector.later.iter_mut().skip(sector.acknowledged);
                later.for_each(|(_, step)| *step = None);
                continue;
            }
            sector.acknowledged = 0;
            let was_known = !sector.base.is_empty();
            let later = sector.later.drain(..).map(|(content, _)| content);
            if was_known {
                sector.base.extend(later);
            }
        }
    }
}
