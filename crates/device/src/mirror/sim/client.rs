//! Clients of a world: each begins one operation.

use std::ops::Range;

use rand::Rng;

use super::super::generation::Halves;
use super::super::state::{Begin, Span};
use super::disk::DiskOp;
use super::life::{Client, Life, Owner, Pending, REGION_SECTORS, Stage, What};
use super::world::World;

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
                    range.clone().for_each(|at| self.oracle.begin(at, content));
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

    fn ask(&mut self, life: &mut Life, client: &mut Client, refusals: u64) {
        let begin = match &client.what {
            What::Read(sector) => life.state.begin_read(span(&(*sector..sector + 1))),
            What::Write(sectors, _) => life.state.begin_write(span(sectors)),
            What::Flush => life.state.begin_flush(),
        };
        match begin {
            Begin::Go(sent) => {
                for half in sent.iter() {
                    let op = match &client.what {
                        What::Read(sector) => DiskOp::Read(vec![*sector]),
                        What::Write(sectors, content) => {
                            DiskOp::Write(sectors.clone().map(|at| (at, *content)).collect())
                        }
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
                client.stage = Stage::Ended { acknowledged: true };
                return self.oracle.read(*sector, content, self.step);
            }
            What::Write(sectors, _) => life.state.end_write(span(sectors), sent, missed),
            What::Flush => life.state.end_flush(sent, missed),
        };
        client.stage =
            if done { Stage::Settling(missed) } else { Stage::Ended { acknowledged: false } };
        Ok(())
    }

    /// The client has its answer.
    fn end(&mut self, client: &Client, acknowledged: bool) {
        match &client.what {
            What::Read(sector) => self.oracle.unlock(*sector),
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
