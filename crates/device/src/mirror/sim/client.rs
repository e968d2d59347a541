//! Clients of a world: each begins one operation.

use std::ops::Range;

use rand::Rng;

use super::super::plant::Plant;
use super::super::state::{Begin, Span};
use super::disk::{DiskOp, ROT, Way};
use super::life::{Client, Life, Owner, Pending, REGION_SECTORS, Stage, What};
use super::world::World;
use crate::device::Halves;

/// Operations at a time.
const CLIENTS: usize = 6;

fn span(sectors: &Range<usize>) -> Span {
    sectors.start / REGION_SECTORS..=(sectors.end - 1) / REGION_SECTORS
}

impl World {
    pub(super) fn begin_client(&mut self, life: &mut Life) {
        if life.clients.len() == CLIENTS || self.is_calm() {
            return;
        }
        let sectors = self.focus;
        let what = match self.random.random_range(0..10) {
            0..2 => What::Flush,
            kind => {
                let start = self.random.random_range(0..sectors);
                let len = if kind < 5 { 1 } else { self.random.random_range(1..5) };
                let range = start..(start + len).min(sectors);
                let locked = range.clone().take_while(|at| self.oracle.lock(*at)).count();
                if locked < range.len() {
                    range.take(locked).for_each(|at| self.oracle.unlock(at));
                    return;
                }
                if kind < 5 {
                    What::Read(start)
                } else {
                    let content = self.next_content;
                    self.next_content += 1;
                    range.clone().for_each(|at| {
                        self.unrot(at);
                        self.oracle.begin(at, content);
                    });
                    What::Write(range, content)
                }
            }
        };
        self.next_content += 1;
        let stage = Stage::Held { refusals: life.state.refusals() };
        let (id, begun) = (self.next_content as usize, self.step);
        life.clients.push(Client { id, what, stage, begun });
    }

    /// Clients that wait ask again.
    pub(super) fn step_clients(&mut self, life: &mut Life) -> Result<(), String> {
        let mut clients = std::mem::take(&mut life.clients);
        for client in &mut clients {
            if matches!(client.stage, Stage::Search) {
                self.search(life, client)?;
            }
            if let Stage::Held { refusals } = client.stage {
                self.ask(life, client, refusals);
            }
            if let Stage::Settling(missed) = client.stage {
                if life.state.is_fenced() {
                    client.stage = Stage::Ended { acknowledged: false };
                } else if life.state.is_settled(missed) {
                    client.stage = Stage::Ended { acknowledged: true };
                }
            }
            if let Stage::Ended { acknowledged } = client.stage {
                self.end(client, acknowledged);
            }
        }
        clients.retain(|client| !matches!(client.stage, Stage::Ended { .. }));
        life.clients = clients;
        Ok(())
    }

    /// Flips bits back: nothing could tell them while a sector that is written has no checksum.
    fn unrot(&mut self, sector: usize) {
        for disk in self.disks.iter_mut().filter(|disk| disk.read(sector) & ROT != 0) {
            disk.rot(sector);
        }
    }

    /// Returns the write of intact contents over flipped bits.
    pub(super) fn mend(&self, sectors: Vec<(usize, u64)>) -> DiskOp {
        let is_cached = self.plant == Some(Plant::MendUnflushed);
        DiskOp::Write(sectors, if is_cached { Way::Cached } else { Way::Durable })
    }

    /// Reads each half in turn, as whatever finds a wrong checksum does.
    fn search(&mut self, life: &mut Life, client: &mut Client) -> Result<(), String> {
        let What::Read(sector) = client.what else { panic!("{client:?} reads") };
        for half in 0..self.disks.len() {
            match life.state.begin_read_copy(half, span(&(sector..sector + 1))) {
                Some(Begin::Go(_)) => {}
                Some(Begin::Hold) => return Ok(()),
                Some(Begin::Fenced) | None => continue,
            }
            let found = self.disks[half].try_read(sector).filter(|content| content & ROT == 0);
            if let Some(content) = found {
                self.seldom.mends += 1;
                client.what = What::Mend(sector, content);
                client.stage = Stage::Held { refusals: life.state.refusals() };
                return self.oracle.read(sector, content, self.step);
            }
        }
        client.stage = Stage::Ended { acknowledged: false };
        Ok(())
    }

    fn ask(&mut self, life: &mut Life, client: &mut Client, refusals: u64) {
        let begin = match &client.what {
            What::Read(sector) => life.state.begin_read(span(&(*sector..sector + 1))),
            What::Write(sectors, _) => life.state.begin_write(span(sectors)),
            What::Mend(sector, _) => life.state.begin_write(span(&(*sector..sector + 1))),
            What::Flush => life.state.begin_flush(),
        };
        match begin {
            Begin::Go(sent) => {
                for half in sent.iter() {
                    let op = match &client.what {
                        What::Read(sector) => DiskOp::Read(vec![*sector]),
                        What::Write(sectors, content) => {
                            let sectors = sectors.clone().map(|at| (at, *content));
                            DiskOp::Write(sectors.collect(), Way::Cached)
                        }
                        What::Mend(sector, content) => self.mend(vec![(*sector, *content)]),
                        What::Flush => DiskOp::Flush(self.disks[half].written),
                    };
                    life.pending.push(Pending { half, op, owner: Owner::Client(client.id) });
                }
                let missed = Halves::NONE;
                client.stage = Stage::Running { left: sent.len(), sent, missed, read: None };
            }
            Begin::Hold if life.state.refusals() == refusals => {}
            Begin::Hold | Begin::Fenced => client.stage = Stage::Ended { acknowledged: false },
        }
    }

    /// An operation of a client has ended on a half; `None` if it failed.
    pub(super) fn client_ended(
        &mut self,
        life: &mut Life,
        id: usize,
        half: usize,
        result: Option<Vec<u64>>,
    ) -> Result<(), String> {
        let client = life.clients.iter_mut().find(|client| client.id == id);
        let client = client.expect("an operation belongs to a client");
        let Stage::Running { left, sent, missed, read } = &mut client.stage else {
            panic!("{client:?} runs")
        };
        *left -= 1;
        match result {
            None => *missed = missed.with(Halves::one(half)),
            Some(contents) => *read = contents.first().copied(),
        }
        if *left > 0 {
            return Ok(());
        }
        let (sent, missed, read) = (*sent, *missed, *read);
        let done = match &client.what {
            What::Read(sector) => {
                let Some(content) = read else {
                    let again = life.state.read_failed(half, span(&(*sector..sector + 1)));
                    client.stage = match again {
                        true => Stage::Held { refusals: life.state.refusals() },
                        false => Stage::Ended { acknowledged: false },
                    };
                    return Ok(());
                };
                if content & ROT != 0 {
                    client.stage = Stage::Search;
                    return Ok(());
                }
                client.stage = Stage::Ended { acknowledged: true };
                return self.oracle.read(*sector, content, self.step);
            }
            What::Write(sectors, _) => life.state.end_write(span(sectors), sent, missed),
            What::Mend(sector, _) => {
                life.state.end_write(span(&(*sector..sector + 1)), sent, missed)
            }
            What::Flush => life.state.end_flush(sent, missed),
        };
        client.stage =
            if done { Stage::Settling(missed) } else { Stage::Ended { acknowledged: false } };
        Ok(())
    }

    /// The client has its answer.
    fn end(&mut self, client: &Client, acknowledged: bool) {
        match &client.what {
            What::Read(sector) | What::Mend(sector, _) => self.oracle.unlock(*sector),
            What::Write(sectors, _) => {
                self.seldom.writes += 1;
                for sector in sectors.clone() {
                    if acknowledged {
                        self.oracle.acknowledged(sector, self.step);
                    }
                    self.oracle.unlock(sector);
                }
            }
            What::Flush if acknowledged => {
                self.seldom.flushes += 1;
                self.oracle.flushed(client.begun);
            }
            What::Flush => {}
        }
    }
}
