//! Notices to a host: asynchronous events, which tell it to read a log.
//!
//! Invariant: a host gets no second notice of a log before it has read that log.
//!
//! Source: NVM Express Base 2.0, "Asynchronous Event Request command".

use super::ASYNC_EVENTS_MAX;
use super::log::CHANGES_MAX;
use crate::wire::code::{feature, log};

/// The logs of which there are notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// Namespaces that have changed.
    Namespaces,
    /// Asymmetric namespace access.
    Access,
    /// Discovery.
    Discovery,
}

impl Log {
    const ALL: [Self; 3] = [Self::Namespaces, Self::Access, Self::Discovery];

    /// The log with this number.
    pub(super) fn of(page: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|log| log.page() == page)
    }

    fn page(self) -> u8 {
        match self {
            Self::Namespaces => log::CHANGED_NAMESPACES,
            Self::Access => log::ANA,
            Self::Discovery => log::DISCOVERY,
        }
    }

    /// The bit with which a host asks for the notice.
    fn wanted(self) -> u32 {
        match self {
            Self::Namespaces => feature::NAMESPACE_NOTICES,
            Self::Access => feature::ANA_NOTICES,
            Self::Discovery => feature::DISCOVERY_NOTICES,
        }
    }

    /// The result of the command that waits: the type of notices, which one, and its log.
    fn event(self) -> u64 {
        let which = match self {
            Self::Namespaces => 0x00,
            Self::Access => 0x03,
            Self::Discovery => 0xf0,
        };
        0x02 | which << 8 | u64::from(self.page()) << 16
    }
}

/// The state of a log's notice.
#[derive(Debug, Clone, Copy, Default)]
struct Notice {
    /// The log has changed since the host has read it.
    is_due: bool,
    /// The host has been told.
    is_told: bool,
}

/// The notices of a controller.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// The identifiers of commands that wait for an event.
    waiting: Vec<u16>,
    of_logs: [Notice; Log::ALL.len()],
    /// Namespaces that have changed since the host read the log.
    changed: Vec<u32>,
}

impl Notices {
    /// Has a command wait. Returns whether there is a place for it.
    pub(super) fn wait(&mut self, id: u16) -> bool {
        let has_place = self.waiting.len() < ASYNC_EVENTS_MAX;
        if has_place {
            self.waiting.push(id);
        }
        has_place
    }

    /// Returns whether the command with this identifier waits.
    pub(super) fn holds(&self, id: u16) -> bool {
        self.waiting.contains(&id)
    }

    /// Notes that a log has changed.
    pub(super) fn log_changed(&mut self, log: Log) {
        self.of_logs[log as usize].is_due = true;
    }

    /// Notes that namespaces have changed.
    pub(super) fn namespaces_changed(&mut self, ids: &[u32]) {
        for id in ids {
            if let Err(at) = self.changed.binary_search(id)
                && self.changed.len() <= CHANGES_MAX
            {
                self.changed.insert(at, *id);
            }
        }
        if !ids.is_empty() {
            self.log_changed(Log::Namespaces);
        }
    }

    /// The namespaces that have changed, as the log lists them.
    pub(super) fn changed(&self) -> &[u32] {
        if self.changed.len() > CHANGES_MAX { &[u32::MAX] } else { &self.changed }
    }

    /// The host has read a log.
    pub(super) fn log_read(&mut self, log: Log) {
        self.of_logs[log as usize] = Notice::default();
        if log == Log::Namespaces {
            self.changed.clear();
        }
    }

    /// Returns the next command to answer with an event, and the event. `wanted` is the host's
    /// choice of events.
    pub(super) fn next(&mut self, wanted: u32) -> Option<(u16, u64)> {
        let is_next = |log: &Log| {
            let notice = self.of_logs[*log as usize];
            wanted & log.wanted() != 0 && notice.is_due && !notice.is_told
        };
        let log = Log::ALL.into_iter().find(is_next).filter(|_| !self.waiting.is_empty())?;
        self.of_logs[log as usize].is_told = true;
        Some((self.waiting.remove(0), log.event()))
    }
}
