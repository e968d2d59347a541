//! What every 512 bytes of every volume may hold.
//!
//! For each unit the oracle keeps the changes that may show: those answered last, those under way,
//! those that failed (nobody knows whether they happened), and those that a later one has replaced,
//! but which a power cut may bring back. So a change ends twice. It is *replaced* when a later one
//! is answered: requests that come after that must not see it. It is *buried* once a later one is
//! certain to survive, because it was durable or a flush that came after its answer was answered:
//! not even a power cut brings it back.
//!
//! After a crash every change that is not buried may be what is there. The first read of a unit
//! says which, and buries the others: later reads, evictions and further crashes must agree with it
//! until there is another change.
//!
//! Times are counts of whatever happened. Changes of one unit that overlap in time may take effect
//! in either order.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use crate::stamp::{Found, UNIT, Version, ZEROS, look};

/// When something has not happened yet.
const NOT_YET: u64 = u64::MAX;

/// What a change leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// What was written, or zeros.
    Is(Version),
    /// Whatever was there, ever: what a trim leaves.
    Anything,
}

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It happened.
    Done {
        /// And survives.
        durable: bool,
    },
    /// It may have happened.
    Failed,
    /// It has not happened.
    Refused,
}

#[derive(Debug, Clone, Copy)]
struct Change {
    content: Content,
    submitted: u64,
    answered: u64,
    /// Whether it has certainly happened.
    done: bool,
    replaced: u64,
    buried: bool,
    /// It is from before the last crash, and may be what that left.
    recovered: bool,
}

/// A unit that does not hold what it may.
#[derive(Debug)]
pub struct Violation {
    pub volume: usize,
    pub unit: u32,
    found: Found,
    changes: Vec<Change>,
    submitted: u64,
}

#[derive(Clone, Default)]
struct Volume {
    units: Vec<Vec<Change>>,
    /// The units about which there is more than one thing to say.
    open: Vec<u32>,
    /// Those that were so when a crash came since it was last found out what crashes have left, if
    /// only because the same was written again.
    doubtful: HashSet<u32>,
}

/// All there is to know.
pub struct Oracle {
    volumes: Vec<Volume>,
    now: u64,
}

impl Change {
    fn is_settled(&self) -> bool {
        self.content != Content::Anything
    }

    /// Whether a request that came then may see it.
    fn shows(&self, since: u64) -> bool {
        self.replaced > since
    }

    fn fits(&self, version: Version) -> bool {
        self.content == Content::Anything || self.content == Content::Is(version)
    }
}

/// Whether there is only one thing to say about a unit.
fn is_closed(unit: &[Change]) -> bool {
    matches!(unit, [change] if change.is_settled() && change.answered != NOT_YET)
}

impl Oracle {
    /// Volumes of so many units each, which hold zeros.
    pub fn new(sizes: &[u32]) -> Oracle {
        let zeros = Change {
            content: Content::Is(ZEROS),
            submitted: 0,
            answered: 0,
            done: true,
            replaced: NOT_YET,
            buried: false,
            recovered: false,
        };
        let volume = |&units: &u32| Volume {
            units: vec![vec![zeros]; units as usize],
            open: Vec::new(),
            doubtful: HashSet::new(),
        };
        Oracle { volumes: sizes.iter().map(volume).collect(), now: 0 }
    }

    /// Something happens: when.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A unit about which there is more than one thing to say; `which` chooses.
    pub fn open_unit(&self, volume: usize, which: usize) -> Option<u32> {
        let open = &self.volumes[volume].open;
        which.checked_rem(open.len()).map(|at| open[at])
    }

    /// It has been found out what the crashes so far have left.
    pub fn found(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.doubtful.clear());
    }

    /// Whether each of some units had been flushed whenever a crash came since that was last
    /// [found out](Oracle::found), and nothing else was to be there.
    pub fn was_certain(&self, volume: usize, mut units: Range<u32>) -> bool {
        units.all(|unit| !self.volumes[volume].doubtful.contains(&unit))
    }

    /// A change of some units begins, while requests are under way that came at `oldest` or later;
    /// answers its name.
    pub fn begin(
        &mut self,
        volume: usize,
        units: Range<u32>,
        content: Content,
        oldest: u64,
    ) -> u64 {
        let submitted = self.tick();
        let change = Change {
            content,
            submitted,
            answered: NOT_YET,
            done: false,
            replaced: NOT_YET,
            buried: false,
            recovered: false,
        };
        let Volume { units: all, open, .. } = &mut self.volumes[volume];
        for at in units {
            let unit = &mut all[at as usize];
            if is_closed(unit) {
                open.push(at);
            }
            unit.retain(|change| !change.buried || change.shows(oldest));
            unit.push(change);
        }
        submitted
    }

    /// A change has been answered.
    pub fn end(&mut self, volume: usize, units: Range<u32>, name: u64, outcome: Outcome) {
        let now = self.tick();
        for unit in &mut self.volumes[volume].units[units.start as usize..units.end as usize] {
            if outcome == Outcome::Refused {
                unit.retain(|change| change.submitted != name);
                continue;
            }
            let Some(own) = unit.iter_mut().find(|change| change.submitted == name) else {
                continue;
            };
            own.answered = now;
            let Outcome::Done { durable } = outcome else { continue };
            own.done = true;
            if own.is_settled() {
                for other in unit.iter_mut().filter(|change| change.answered < name) {
                    other.replaced = other.replaced.min(now);
                    other.buried |= durable;
                }
            }
        }
    }

    /// A flush that came at `submitted` has been answered: all that had been answered before
    /// survives.
    pub fn flushed(&mut self, volume: usize, submitted: u64, oldest: u64) {
        let Volume { units, open, .. } = &mut self.volumes[volume];
        open.retain(|&at| {
            let unit = &mut units[at as usize];
            let survives = |change: &&Change| {
                change.done && change.is_settled() && change.answered <= submitted
            };
            if let Some(last) = unit.iter().filter(survives).map(|change| change.submitted).max() {
                for change in unit.iter_mut().filter(|change| change.answered < last) {
                    change.buried = true;
                }
            }
            unit.retain(|change| !change.buried || change.shows(oldest));
            !is_closed(unit)
        });
    }

    /// A read that came at `submitted` has been answered.
    pub fn check(
        &mut self,
        volume: usize,
        first: u32,
        bytes: &[u8],
        submitted: u64,
    ) -> Result<(), Violation> {
        let now = self.tick();
        for (at, bytes) in (first..).zip(bytes.chunks_exact(UNIT)) {
            let unit = &mut self.volumes[volume].units[at as usize];
            let found = look(bytes, volume, at);
            let version = match found {
                Found::Version(version) => Some(version),
                Found::Foreign(_) | Found::Torn(_) => None,
            };
            let mut showing = unit.iter().filter(|change| change.shows(submitted));
            let Some(version) =
                version.filter(|&version| showing.any(|change| change.fits(version)))
            else {
                let changes = unit.clone();
                return Err(Violation { volume, unit: at, found, changes, submitted });
            };
            if !is_closed(unit) {
                settle_recovered(unit, version, submitted);
                settle_quiet(unit, version, submitted, now);
            }
        }
        Ok(())
    }

    /// The cache ends, in whatever way but orderly: of each unit all may be there that is not
    /// buried.
    pub fn crash(&mut self) {
        let now = self.tick();
        for Volume { units, open, doubtful } in &mut self.volumes {
            doubtful.extend(open.iter().copied());
            open.retain(|&at| {
                let unit = &mut units[at as usize];
                unit.retain(|change| !change.buried);
                let anything = unit.iter().any(|change| !change.is_settled());
                let mut seen = Vec::new();
                unit.retain_mut(|change| {
                    let content = if anything { Content::Anything } else { change.content };
                    *change = Change {
                        content,
                        submitted: now,
                        answered: now,
                        done: true,
                        replaced: NOT_YET,
                        buried: false,
                        recovered: true,
                    };
                    let new = !seen.contains(&content);
                    seen.push(content);
                    new
                });
                !is_closed(unit)
            });
        }
    }
}

/// Finding what the last crash left settles what that was, whatever goes on meanwhile.
fn settle_recovered(unit: &mut Vec<Change>, version: Version, submitted: u64) {
    let new =
        |change: &Change| !change.recovered && change.shows(submitted) && change.fits(version);
    let candidates = unit.iter().filter(|change| change.recovered && !change.buried);
    let (mut count, mut anything) = (0, None);
    for candidate in candidates {
        count += 1;
        if !candidate.is_settled() {
            anything = Some(*candidate);
        }
    }
    if unit.iter().any(new) || count < 2 && anything.is_none() {
        return;
    }
    if let Some(anything) = anything {
        unit.push(Change { content: Content::Is(version), ..anything });
    }
    for change in unit.iter_mut().filter(|change| change.recovered) {
        if change.content != Content::Is(version) {
            (change.replaced, change.buried) = (0, true);
        }
    }
}

/// With nothing under way meanwhile, what has been read once must be read again, until there is
/// another change.
fn settle_quiet(unit: &mut Vec<Change>, version: Version, submitted: u64, now: u64) {
    let mut showing = unit.iter().filter(|change| change.shows(submitted));
    let is_quiet = |change: &Change| change.replaced == NOT_YET && change.answered < submitted;
    let is_one = matches!((showing.next(), showing.next()), (Some(one), None) if one.is_settled());
    if is_one || !unit.iter().filter(|change| change.shows(submitted)).all(is_quiet) {
        return;
    }
    for change in unit.iter_mut() {
        change.replaced = change.replaced.min(now);
    }
    unit.push(Change {
        content: Content::Is(version),
        submitted,
        answered: now,
        done: true,
        replaced: NOT_YET,
        buried: false,
        recovered: false,
    });
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { volume, unit, found, submitted, .. } = self;
        write!(
            f,
            "unit {unit} of volume {volume} holds {found}; a read that came at {submitted} may find"
        )?;
        for change in self.changes.iter().filter(|change| change.shows(*submitted)) {
            match change.content {
                Content::Is(version) => write!(f, " {},", Found::Version(version))?,
                Content::Anything => write!(f, " whatever it held,")?,
            }
        }
        write!(f, " of")?;
        for change in &self.changes {
            write!(f, "\n    {change}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.content {
            Content::Is(version) => write!(f, "{}", Found::Version(version))?,
            Content::Anything => write!(f, "a trim")?,
        }
        write!(f, " that came at {}", self.submitted)?;
        match self.answered {
            NOT_YET => write!(f, ", not answered")?,
            at => write!(f, ", {} at {at}", if self.done { "done" } else { "failed" })?,
        }
        match self.replaced {
            NOT_YET => {}
            at => write!(f, ", replaced at {at}")?,
        }
        let or_not = |is: bool, what| if is { what } else { "" };
        write!(
            f,
            "{}{}",
            or_not(self.buried, ", buried"),
            or_not(self.recovered, ", from before the crash")
        )
    }
}

#[cfg(test)]
mod tests;
