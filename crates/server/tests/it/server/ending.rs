//! How a server of several threads begins or does not, ends, and comes to grief.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use floe_block::WriteMode;
use floe_device::{Device, MemoryDevice, OpenError, Pool, Ring};
use floe_server::admin::NewVolume;
use floe_server::admin::client as admin;
use floe_server::{DeviceSource, ServeError};
use floe_testkit::{PATIENCE, pattern};

use super::mood::Mood;
use crate::rig::{Gate, Setup, VOLUME};

/// A device that all threads but the last can open.
#[derive(Debug)]
struct Refusing {
    memory: MemoryDevice,
    left: AtomicUsize,
    panics: bool,
}

impl DeviceSource for Refusing {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn refresh(&self) -> std::io::Result<u64> {
        Ok(self.memory.size_bytes())
    }

    fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        if self.left.fetch_sub(1, SeqCst) > 1 {
            return Ok(Box::new(self.memory.clone()));
        }
        assert!(!self.panics, "opening panics, as the test wants");
        Err(OpenError::Memory { size: 1, source: std::io::Error::other("as the test wants") })
    }
}

fn begin_refused(threads: usize, panics: bool) -> ServeError {
    let memory = MemoryDevice::new(1 << 20);
    let refusing = Refusing { memory, left: AtomicUsize::new(threads), panics };
    let setup =
        Setup::new(WriteMode::Through).threads(threads).volume("refusing", Arc::new(refusing));
    setup.start().err().expect("it cannot begin")
}

#[test]
fn a_device_that_one_thread_cannot_open_keeps_the_server_from_beginning() {
    for threads in 1..=3 {
        let error = begin_refused(threads, false);
        assert!(matches!(error, ServeError::Open(_)), "{error}");
    }
}

#[test]
fn a_thread_that_panics_while_it_begins_is_told() {
    for threads in 1..=3 {
        let error = begin_refused(threads, true);
        assert!(matches!(error, ServeError::Panicked(thread) if thread < threads), "{error}");
    }
}

#[test]
fn a_thread_that_panics_ends_the_server_with_an_error() {
    for threads in 1..=3 {
        let mood = Mood::default();
        let setup = Setup::new(WriteMode::Back).threads(threads);
        let rig = setup.backing({
            let mood = mood.clone();
            move |memory| mood.before(memory)
        });
        let rig = rig.start().unwrap();
        let mut clients: Vec<_> = (0..6).map(|number| rig.client_on(number)).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.write(number as u64 * 1_000_000, &pattern(1, 500_000), false).unwrap();
        }
        mood.panic();
        for client in &mut clients {
            for at in 0..8 {
                // the server may have ended
                let _ = client.submit_read(40_000_000 + at * 1_000_000, 300_000);
            }
        }
        let (result, _) = rig.join();
        assert!(matches!(result, Err(ServeError::Panicked(_))), "{result:?}");
        for client in &mut clients {
            while let Ok(Some(_)) = client.next_reply() {} // comes to an end
        }
    }
}

#[test]
fn a_thread_that_hangs_is_reported_and_not_waited_for() {
    let mood = Mood::default();
    let mut setup = Setup::new(WriteMode::Back).threads(2).backing({
        let mood = mood.clone();
        move |memory| mood.before(memory)
    });
    setup.config.limits.reply_time = Duration::from_millis(100);
    let rig = setup.start().unwrap();
    assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
    mood.keep_busy(1, &rig);
    let volume = NewVolume {
        name: "more".into(),
        backing: "memory:1MiB".into(),
        read_only: false,
        holds_cache: false,
        description: String::new(),
        nvme_block_bytes: None,
        limit: Default::default(),
        share: Default::default(),
    };
    let refused = [
        admin::status(&rig.admin).map(drop),
        admin::add_volume(&rig.admin, &volume).map(drop),
        admin::remove_volume(&rig.admin, "floe", true).map(drop),
        admin::restore(&rig.admin).map(drop),
    ];
    for refused in refused {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("has not answered for"), "{error}");
    }
    let unhealthy = admin::health(&rig.admin).unwrap_err().to_string();
    assert!(unhealthy.contains("thread 1 has not answered for"), "{unhealthy}");
    rig.tell_to_end();
    let (result, _) = rig.join();
    mood.let_go();
    assert!(matches!(result, Err(ServeError::Hangs(_))), "{result:?}");
}

#[test]
fn pieces_under_way_on_all_threads_are_finished_when_the_end_comes() {
    const WRITE: usize = 600_000; // regions of all threads
    for threads in 1..=3 {
        for mode in [WriteMode::Through, WriteMode::Back] {
            let gate = Gate::default();
            let mut setup = Setup::new(mode).threads(threads).backing({
                let gate = gate.clone();
                move |memory| gate.before(memory)
            });
            // Clients that are late are broken off with, and here all wait for the gate, and that
            // for the machine.
            setup.config.limits.farewell_time = PATIENCE;
            let rig = setup.start().unwrap();
            let mut clients: Vec<_> = (0..6).map(|number| rig.client_on(number)).collect();
            gate.shut();
            for (number, client) in clients.iter_mut().enumerate() {
                let at = number as u64 * 10_000_000;
                client.submit_write(at, &pattern(number as u64, WRITE), false).unwrap();
                client.submit_read(at + 5_000_000, WRITE as u32).unwrap();
            }
            // Once a read is under way, the write before it is, too.
            for number in 0..6 {
                let at = number * 10_000_000 + 5_000_000;
                gate.wait_for_one_in(at..at + WRITE as u64);
            }
            assert_eq!(rig.status().connections, 6);
            rig.tell_to_end();
            assert_eq!(rig.status().connections, 6);
            gate.open();
            for client in &mut clients {
                for _ in 0..2 {
                    client.next_reply().unwrap().unwrap().outcome.unwrap();
                }
                assert!(client.read(0, &mut [0; 10]).is_err());
            }
            let (result, volume) = rig.join();
            result.unwrap();
            assert_eq!(volume.len(), VOLUME);
            for number in 0..6 {
                let found = &volume[number * 10_000_000..][..WRITE];
                assert!(found == pattern(number as u64, WRITE), "{mode}, {threads} threads");
            }
        }
    }
}
