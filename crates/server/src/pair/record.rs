//! The records of a lease and of a standby, in notes beside the first image.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The key of the record's note.
pub(super) const KEY: &str = "lease";

/// The record, as JSON. Fields that a newer version adds are passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The machine of the server.
    pub server: String,
    /// Counts the servers that have had the images, one after the other.
    pub generation: u64,
    /// Counts the renewals.
    pub beat: u64,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// The owners of the images' locks, as the cluster calls them, in the order of the volumes.
    pub owners: Vec<String>,
}

impl LeaseRecord {
    /// The lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// The text of the note.
    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    /// Reads the text of a note; `None` where it is something else.
    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The key of the note in which a standby says that it is there.
pub(super) const STANDBY: &str = "standby";

/// A standby that is there. Its note changes each second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StandbyRecord {
    /// The machine of the server.
    pub(super) server: String,
    /// The time since its machine was started, in milliseconds.
    pub(super) beat: u64,
}

impl StandbyRecord {
    pub(super) fn new(beat: Duration) -> Self {
        Self { server: machine(), beat: beat.as_millis() as u64 }
    }

    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The name of this machine.
pub(super) fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let record = LeaseRecord {
            server: "storage1".to_owned(),
            generation: 7,
            beat: 12,
            lease_ms: 5000,
            owners: vec!["127.0.0.1:0/1".to_owned()],
        };
        assert_eq!(LeaseRecord::decode(&record.encode()), Some(record.clone()));
        let newer = record.encode().replacen('{', "{\"colour\":\"red\",", 1);
        assert_eq!(LeaseRecord::decode(&newer), Some(record));
        for text in ["", "{}", "[]", "storage1", "{\"server\":1}"] {
            assert_eq!(LeaseRecord::decode(text), None, "{text}");
        }
    }
}
