//! Tiers that come and go while the server runs: step by step, each asked of all workers.
//!
//! A tier comes when it has been made (on a thread of its own, since that may take its time) and
//! every worker has opened its device. A tier goes when it has brought down what only it has, for
//! the most part while clients go on as ever. Either way the workers then shut the seam where it
//! happens: what has to go below it waits, in all of them, until nothing is under way there; each
//! exchanges what is below and opens the seam again. If the drain fails the tier stays.
//!
//! The first tier stays: it numbers the volumes for clients, and memory and shedding are made for
//! it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;

use floe_block::{Exchange, VolumeId};

use super::errand::{Admin, Errand, Then};
use super::front::{Front, Phase};
use super::letter::{Deed, Instruction, News, Problem, TierDeed};
use super::maker::{TierOrder, TierRefused};
use super::offer::Offered;
use super::tier::{KnownTier, Tier, TierKey, in_threads, link};
use crate::admin::{NewTier, Reply, Trouble};
use crate::kept::Consent;

/// A tier that is on its way in or out.
#[derive(Debug)]
pub(super) struct Restacking {
    /// The client that is told how it went; none once the server ends before the tier is made.
    admin: Option<Admin>,
    /// What it is to be below, or is.
    above: TierKey,
    /// It is still being made, on a thread of its own.
    in_making: bool,
    /// Once it is made, the tier that comes, and its numbers of the volumes in their order.
    coming: Option<(KnownTier, Vec<VolumeId>)>,
    is_shut: bool,
    problem: Option<String>,
}

impl Restacking {
    /// Whether workers hold something back.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }
}

/// How far a tier has come, in all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The device of one that comes is open.
    Opened,
    /// Nothing is under way where it is to be.
    ShutToCome,
    In,
    /// It does not come: its device is closed.
    Dismissed,
    /// No more of one that goes gets dirty.
    Limited,
    /// It has brought down what only it had when that began.
    Emptied,
    /// Nothing is under way between it and the one above.
    ShutToGo,
    /// It has brought down what only it had got meanwhile.
    EmptiedAgain,
    Rest,
    Out,
    /// It stays, and all is as before.
    Stays,
}

fn conflict<T>(problem: impl Into<String>) -> Result<T, Reply> {
    Err(Reply::trouble(Trouble::Conflict, problem))
}

impl Front {
    /// The first step of a tier's coming: it is made.
    pub(super) fn add_tier(&mut self, admin: Admin, wanted: NewTier) -> Result<(), Reply> {
        let NewTier { tier: spec, at, initialise, discard_dirty } = wanted;
        let at = at.unwrap_or(self.tiers.len());
        self.one_at_a_time()?;
        if at == 0 {
            return conflict(
                "a tier comes below the first one, which clients, memory and shedding depend on: \
                 say 1 or more",
            );
        }
        if at > self.tiers.len() {
            let last = self.tiers.len();
            return conflict(match last {
                1 => format!("a tier cannot be number {at}: below the only one it is number 1"),
                _ => {
                    format!(
                        "a tier cannot be number {at}: with {last} tiers, one more is number 1 to \
                         {last}"
                    )
                }
            });
        }
        let Some(maker) = self.config.tiers.clone() else {
            return conflict("this server was begun without anybody to make tiers");
        };
        let memory = self.config.memory.as_ref().map_or(0, |memory| memory.usage().size_bytes);
        let above_bytes =
            self.tiers[..at].iter().map(|tier| tier.cache_bytes).sum::<u64>() + memory;
        let volumes = self.offer.all().iter().map(|offered| offered.volume.clone()).collect();
        let consent = Consent { initialise, discard_dirty, ..Consent::default() };
        let paths = self.admin_sessions[admin].paths();
        let order =
            TierOrder { spec, consent, threads: self.workers.len(), above_bytes, paths, volumes };
        let news = Arc::clone(&self.news);
        let make = move || {
            let panicked =
                |_| TierRefused { problem: "making the tier panicked".into(), is_failure: true };
            let made =
                catch_unwind(AssertUnwindSafe(|| maker.make(&order))).map_err(panicked).flatten();
            news.post(News::TierMade(made.map(Box::new)));
        };
        let thread = Builder::new().name("floe-tier".to_owned()).spawn(make);
        thread.map_err(|error| {
            Reply::trouble(
                Trouble::Failed,
                format!("cannot start a thread to make the tier: {error}"),
            )
        })?;
        let above = self.tiers[at - 1].key;
        self.restacking = Some(Restacking {
            admin: Some(admin),
            above,
            in_making: true,
            coming: None,
            is_shut: false,
            problem: None,
        });
        Ok(())
    }

    /// The client that waits for a tier that is being made. It is told of the end at once, since
    /// making a tier may take its time.
    pub(super) fn tier_maker_waits(&mut self) -> Option<Admin> {
        let restacking = self.restacking.as_mut().filter(|it| it.in_making)?;
        restacking.admin.take()
    }

    /// The tier has been made, or cannot be: workers open its device.
    pub(super) fn tier_made(&mut self, made: Result<Box<Tier>, TierRefused>) {
        self.restack().in_making = false;
        let tier = match made {
            Ok(_) if self.phase != Phase::Serving => return self.end_restacking(ending()),
            Ok(tier) => *tier,
            Err(TierRefused { problem, is_failure }) => {
                let trouble = if is_failure { Trouble::Failed } else { Trouble::Conflict };
                return self.end_restacking(Reply::trouble(trouble, problem));
            }
        };
        let key = TierKey(self.keys_given);
        self.keys_given += 1;
        let ids = (0..self.offer.all().len()).map(|at| tier.cache.id(at)).collect();
        let bells: Vec<_> =
            self.workers.iter().map(|worker| Arc::clone(worker.instructions.bell())).collect();
        let (known, parts) = in_threads(tier, key, Exchange::between(&bells));
        self.restack().coming = Some((known, ids));
        let errand = self.errands.insert(Errand::new(self.workers.len(), Then::Tier(Step::Opened)));
        for (worker, tier) in self.workers.iter().zip(parts) {
            worker.instructions.post(Instruction::Open { errand, tier: Box::new(tier) });
        }
    }

    /// The first step of a tier's going: it is kept from getting more dirty than it is.
    pub(super) fn remove_tier(&mut self, admin: Admin, number: usize) -> Result<(), Reply> {
        self.one_at_a_time()?;
        if number == 0 {
            return conflict("the first tier stays: clients, memory and shedding depend on it");
        }
        let Some(tier) = self.tiers.get(number) else {
            let last = self.tiers.len() - 1;
            let problem = format!("there is no tier {number}: the last one is number {last}");
            return Err(Reply::trouble(Trouble::NotFound, problem));
        };
        let (key, above) = (tier.key, self.tiers[number - 1].key);
        self.restacking = Some(Restacking {
            admin: Some(admin),
            above,
            in_making: false,
            coming: None,
            is_shut: false,
            problem: None,
        });
        self.ask_all(
            Deed::Tier(TierDeed::LimitDirty { tier: key, bytes: 0 }),
            Then::Tier(Step::Limited),
        );
        Ok(())
    }

    /// All workers have come so far with a tier that comes or goes: what comes next.
    pub(super) fn restacked(&mut self, step: Step, problem: Option<Problem>) {
        let above = self.restack().above;
        let ends = self.phase != Phase::Serving && !self.restack().is_shut;
        let problem = match problem {
            Some(problem) => Some(problem.to_string()),
            None => ends.then(|| "the server is ending".to_owned()),
        };
        match (step, problem) {
            (Step::Dismissed | Step::Stays, _) => {
                let problem = self.restack().problem.take().unwrap_or_default();
                self.end_restacking(Reply::trouble(Trouble::Failed, problem));
            }
            (Step::Opened, Some(problem)) => self.dismiss_tier(problem),
            (Step::Opened, None) => self.shut(Step::ShutToCome),
            (Step::ShutToCome, _) => {
                // Before the newcomer has anything that nothing else has, the others know of it.
                let at = self.place();
                let newcomer = self
                    .restacking
                    .as_mut()
                    .and_then(|it| it.coming.as_mut())
                    .map(|(tier, _)| tier);
                let (before, after) = self.tiers.split_at_mut(at);
                if let Err(error) = link(self.stack, before.iter_mut().chain(newcomer).chain(after))
                {
                    return self.dismiss_tier(format!(
                        "the superblock of a cache could not be written: {error}"
                    ));
                }
                let ids = self.ids_of_newcomer();
                self.ask_all(Deed::Tier(TierDeed::PutIn { above, ids }), Then::Tier(Step::In));
            }
            (Step::In, _) => self.tier_added(),
            (Step::Limited | Step::Emptied | Step::EmptiedAgain | Step::Rest, Some(problem)) => {
                self.keep_tier(&problem);
            }
            (Step::Limited, None) => self.empty_tier(Step::Emptied),
            (Step::Emptied, None) => self.shut(Step::ShutToGo),
            (Step::ShutToGo, _) => self.empty_tier(Step::EmptiedAgain),
            (Step::EmptiedAgain, None) => {
                self.ask_all(Deed::Tier(TierDeed::Rest { above }), Then::Tier(Step::Rest))
            }
            (Step::Rest, None) => {
                self.vacate_tier();
                self.ask_all(Deed::Tier(TierDeed::TakeOut { above }), Then::Tier(Step::Out));
            }
            (Step::Out, _) => self.tier_removed(),
        }
    }

    fn restack(&mut self) -> &mut Restacking {
        self.restacking.as_mut().expect("a tier is on its way")
    }

    fn shut(&mut self, then: Step) {
        self.restack().is_shut = true;
        let above = self.restack().above;
        self.ask_all(Deed::Tier(TierDeed::Shut { above }), Then::Tier(then));
    }

    /// Where the tier is that goes, or where the one is to be that comes.
    fn place(&mut self) -> usize {
        let above = self.restack().above;
        self.at(above).expect("the tier above stays") + 1
    }

    /// What the tier above calls the volumes, and what the one that comes is to call them.
    fn ids_of_newcomer(&mut self) -> Arc<[(VolumeId, VolumeId)]> {
        let above = self.place() - 1;
        let (_, new) = self.restack().coming.as_ref().expect("a tier comes");
        let new = new.clone();
        self.offer.all().iter().zip(new).map(|(offered, new)| (offered.ids[above], new)).collect()
    }

    /// Has the tier that goes bring down what only it has. Any worker can ask for it, as of a
    /// flush.
    fn empty_tier(&mut self, then: Step) {
        let (above, at) = (self.restack().above, self.place() - 1);
        let volumes: Vec<VolumeId> =
            self.offer.all().iter().map(|offered| offered.ids[at]).collect();
        if volumes.is_empty() {
            return self.restacked(then, None);
        }
        let errand = self.errands.insert(Errand::new(volumes.len(), Then::Tier(then)));
        for (worker, volume) in self.workers.iter().cycle().zip(volumes) {
            worker.instructions.post(Instruction::Do {
                errand,
                deed: Deed::Tier(TierDeed::Empty { above, volume }),
            });
        }
    }

    /// A tier does not come after all.
    fn dismiss_tier(&mut self, problem: String) {
        let restacking = self.restack();
        restacking.problem = Some(problem);
        let above = restacking.above;
        self.ask_all(Deed::Tier(TierDeed::Dismiss { above }), Then::Tier(Step::Dismissed));
    }

    /// A tier does not go after all.
    fn keep_tier(&mut self, problem: &str) {
        let at = self.place();
        let bytes = self.tiers[at].most_dirty_bytes.unwrap_or(u64::MAX);
        let restacking = self.restack();
        restacking.problem = Some(format!(
            "tier {at} stays, since it could not bring down what only it has: {problem}"
        ));
        let above = restacking.above;
        self.ask_all(Deed::Tier(TierDeed::Keep { above, bytes }), Then::Tier(Step::Stays));
    }

    /// Leaves nothing on the device of the tier that goes, if it outlives the program: what is
    /// written without it will be newer.
    fn vacate_tier(&mut self) {
        let at = self.place();
        let Some(keeper) = self.tiers[at].keeper.take() else { return };
        // The others expect it no more before it is nobody's.
        let linked = link(self.stack, self.tiers.iter_mut());
        // A tier whose device was given up may still take its superblock.
        let given_up = self.tiers.iter().filter(|tier| tier.failing.degraded);
        let peers = given_up.filter_map(|tier| tier.keeper.as_ref());
        let forgotten = peers.map(|peer| peer.forget_companion(&keeper)).fold(Ok(()), Result::and);
        let unlinked = linked.and(forgotten).map_err(|error| {
            format!(
                "the tier is removed, but others could not be told so, and will ask for it at the \
                 next start: {error}"
            )
        });
        let vacated = keeper.vacate().map_err(|error| {
            format!(
                "the tier is removed, but its device could not be told so: {error}; do not serve \
                 it again without --initialise"
            )
        });
        self.restack().problem = unlinked.and(vacated).err();
    }

    fn tier_added(&mut self) {
        let at = self.place();
        let (known, ids) = self.restack().coming.take().expect("a tier comes");
        tracing::info!(tier = at, name = %known.name, bytes = known.cache_bytes, "tier added");
        self.tiers.insert(at, known);
        let mut ids = ids.into_iter();
        self.renumber(|offered| {
            offered.ids.insert(at, ids.next().expect("it has numbered all volumes"))
        });
        self.end_restacking(Reply::Done("added"));
    }

    fn tier_removed(&mut self) {
        let at = self.place();
        let gone = self.tiers.remove(at);
        tracing::info!(tier = at, name = %gone.name, "tier removed");
        self.renumber(|offered| {
            offered.ids.remove(at);
        });
        let problem = self.restack().problem.take();
        self.end_restacking(match problem {
            None => Reply::Done("removed"),
            Some(problem) => Reply::trouble(Trouble::Failed, problem),
        });
    }

    fn renumber(&mut self, change: impl FnMut(&mut Offered)) {
        let changed = self.offer.change(|volumes| volumes.iter_mut().for_each(change));
        changed.expect("what is offered stays the same");
    }

    /// Tells how it went, and lets the end begin if it has waited.
    fn end_restacking(&mut self, reply: Reply) {
        let restacking = self.restacking.take().expect("a tier is on its way");
        if let Some(admin) = restacking.admin {
            self.tell_admin(admin, &reply);
        }
        if std::mem::take(&mut self.end_due) {
            self.begin_end();
        }
    }
}

pub(super) fn ending() -> Reply {
    Reply::trouble(Trouble::Ending, "the server is ending")
}
