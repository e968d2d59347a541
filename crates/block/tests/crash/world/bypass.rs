//! What the owner of a cache does when its journal cannot be written: it writes down that the cache
//! is void, has the cache go on past its device, and once nothing in it is dirty never uses it
//! again.

use rand::Rng;

use super::{Failure, World};
use crate::boot::NoBoot;
use crate::history::Event;

/// How far it has come in this life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bypassing {
    #[default]
    Not,
    Clean {
        stuck: bool,
    },
    Retired,
}

impl World {
    /// Takes the next step, if the journal is lost.
    pub(super) fn see_to_journal(&mut self) -> Result<(), Failure> {
        if !self.driver().top().cache().condition().has_lost_journal() || !self.machine.has_power()
        {
            return Ok(());
        }
        let cache = self.driver().top().cache();
        let (emptied, blocked) = (cache.condition().is_emptied(), cache.condition().is_blocked());
        match self.bypassing {
            Bypassing::Not if emptied && self.draw(|rng| rng.random()) => self.retire(),
            Bypassing::Not => match self.note_void() {
                Ok(()) => self.go_past(false),
                Err(NoBoot::Power) => {}
                // It would wait for ever: what it may have in the way cannot be told.
                Err(NoBoot::Device(_)) => self.revive(),
                Err(error) => {
                    return Err(self.failure(
                        format!("the superblock is refused: {error:?}"),
                        0,
                        0..0,
                    ));
                }
            },
            Bypassing::Clean { .. } if emptied => self.retire(),
            Bypassing::Clean { stuck: false } if blocked => self.go_past(true),
            Bypassing::Clean { .. } | Bypassing::Retired => {}
        }
        self.driver().advance();
        Ok(())
    }

    fn go_past(&mut self, stuck: bool) {
        self.bypassing = Bypassing::Clean { stuck };
        self.survived.bypassed += u64::from(!stuck);
        self.driver().top_mut().bypass(stuck);
    }

    /// Nothing of the cache counts any more, which is durable from here on.
    fn retire(&mut self) {
        self.bypassing = Bypassing::Retired;
        self.survived.retired += 1;
        self.forsake();
        self.driver().top_mut().retire();
    }

    fn revive(&mut self) {
        self.history.note(Event::DeviceDead { cache: true, dead: false });
        self.cache.set_dead(false);
    }
}
