//! Long sequences stay out: disks are good at them, and they are seldom read twice.
//!
//! Positions that follow each other make a stream; several are followed at once, and the one idle for longest is given up. From the
//! threshold on, a stream's blocks stay out. Not to be used above devices on which sequential reads are no faster than others.

use super::{Admission, Choosable, Needs, Verdict, Victim};
use crate::{About, Access, Parameter, Parameters};

/// Streams followed at once.
const STREAMS: usize = 32;

/// Positions that followed each other; a length of 0 is none.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    next: u64,
    length: u64,
    last_seen: u64,
}

/// Admits what is not part of a long sequence.
#[derive(Debug, Clone)]
pub struct Sequential {
    streams: [Stream; STREAMS],
    threshold: u64,
    now: u64,
}

impl Sequential {
    /// Follows the stream that a position continues, or begins one, and says how long it is now. The same position again
    /// makes a stream no longer.
    fn follow(&mut self, position: u64) -> u64 {
        self.now += 1;
        let continues = |stream: &&mut Stream| {
            stream.length > 0 && (stream.next == position || stream.next == position.wrapping_add(1))
        };
        if let Some(stream) = self.streams.iter_mut().find(continues) {
            stream.length += u64::from(stream.next == position);
            stream.next = position.wrapping_add(1);
            stream.last_seen = self.now;
            return stream.length;
        }
        if let Some(idle) = self.streams.iter_mut().min_by_key(|stream| stream.last_seen) {
            *idle = Stream { next: position.wrapping_add(1), length: 1, last_seen: self.now };
        }
        1
    }
}

impl Choosable for Sequential {
    const ABOUT: About = About::new("sequential", "long sequences stay out", "-")
        .with(&[Parameter::count("threshold", 32, 2..=1 << 32, "positions in a row from which they do")])
        .looking_at_positions();

    fn with(parameters: &Parameters) -> Self {
        Self { streams: [Stream::default(); STREAMS], threshold: parameters.count("threshold"), now: 0 }
    }
}

impl Admission for Sequential {
    fn needs(&self) -> Needs {
        Needs { positions: true, ..Needs::default() }
    }

    fn used(&mut self, access: &Access) {
        self.follow(access.position);
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        if self.follow(offer.position) < self.threshold { Verdict::Admit } else { Verdict::Bypass }
    }
}
