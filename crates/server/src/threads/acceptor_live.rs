//! The acceptor's part of the live page: samples for its history, and clients that watch.

use std::time::Instant;

use super::acceptor::Acceptor;
use super::messages::Done;
use super::questions::Purpose;
use super::replies::snapshots;
use crate::admin::{Reply, Trouble};

/// Most watching clients over Unix sockets, and as many over TCP: a part of all connections, so
/// that they keep no other client out.
const MOST_WATCHING: usize = 8;

impl Acceptor {
    /// Asks for a sample once it is due.
    pub(super) fn sample_when_due(&mut self) {
        let (feed, now) = (&mut self.reporting.feed, Instant::now());
        if !feed.begin(now) {
            return;
        }
        self.ask_snapshots(Purpose::Sample);
    }

    /// Takes a sample in and tells those that watch.
    pub(super) fn take_sample(&mut self, replies: Vec<Done>) {
        let (config, state) = (&self.config, self.board.state());
        let counts = snapshots(replies);
        let mut report = self.reporting.sample(config, &state, &self.entrance.tally, counts);
        let Some(update) = self.reporting.feed.take(&mut report) else { return };
        for index in self.admin_sessions.indices() {
            // A client that has not taken the last event misses this one.
            if self.admin_sessions[index].is_ready_to_watch() {
                self.say_to_admin(index, &update);
            }
        }
    }

    /// Begins a stream of events.
    ///
    /// # Errors
    /// Too many clients watch already.
    pub(super) fn watch(&mut self, index: u32) -> Result<(), Reply> {
        let sessions =
            self.admin_sessions.indices().into_iter().map(|index| &self.admin_sessions[index]);
        let is_remote = self.admin_sessions[index].is_remote;
        let alike = sessions.filter(|session| session.watching && session.is_remote == is_remote);
        if alike.count() >= MOST_WATCHING {
            let problem = format!("{MOST_WATCHING} clients watch already; close a page");
            return Err(Reply::trouble(Trouble::Busy, problem));
        }
        self.admin_sessions[index].watching = true;
        let beginning = self.reporting.feed.beginning();
        self.say_to_admin(index, &beginning);
        self.listen_to_admin(index); // it ends when the client leaves
        Ok(())
    }
}
