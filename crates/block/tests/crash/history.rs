//! What has happened in a world, so that a failure can be understood.

use std::fmt;
use std::ops::Range;

use floe_block::RequestKind;

use crate::boot::Service;
use crate::stamp::Version;

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The power failed.
    Power,
    /// The process was killed.
    Kill,
    /// Everything was flushed before.
    Orderly,
}

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Begun {
        life: u32,
        service: Service,
    },
    NotBegun {
        life: u32,
    },
    Submitted {
        name: u64,
        volume: usize,
        first: u32,
        end: u32,
        kind: RequestKind,
        version: Version,
    },
    Answered {
        name: u64,
        ok: bool,
    },
    Cleaned,
    Resized {
        bytes: u64,
    },
    Created,
    Rotten {
        byte: usize,
    },
    DeviceDead {
        cache: bool,
        dead: bool,
    },
    Ended(End),
}

/// Everything that happened, in order.
#[derive(Default)]
pub struct History {
    events: Vec<Event>,
    digest: u64,
}

impl History {
    pub fn note(&mut self, event: Event) {
        let word = match event {
            Event::Begun { life, .. } | Event::NotBegun { life } => u64::from(life),
            Event::Submitted { name, first, end, version, .. } => {
                name << 40 ^ u64::from(first) << 24 ^ u64::from(end) << 12 ^ u64::from(version)
            }
            Event::Answered { name, ok } => name << 1 | u64::from(ok),
            Event::Cleaned => 1,
            Event::Resized { bytes } => bytes,
            Event::Created => 16,
            Event::Rotten { byte } => byte as u64,
            Event::DeviceDead { cache, dead } => 2 + u64::from(cache) * 2 + u64::from(dead),
            Event::Ended(end) => 8 + end as u64,
        };
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.events.push(event);
    }

    /// A number that tells histories apart.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The last things that concerned some units, one a line.
    pub fn about(&self, volume: usize, units: Range<u32>, most: usize) -> String {
        let mut named = Vec::new();
        let mut told = Vec::new();
        for event in &self.events {
            let concerns = match event {
                Event::Submitted { name, volume: of, first, end, kind, .. } => {
                    let meets = *first < units.end && units.start < *end
                        || matches!(kind, RequestKind::Flush | RequestKind::Drain);
                    if *of == volume && meets {
                        named.push(*name);
                    }
                    *of == volume && meets
                }
                Event::Answered { name, .. } => named.contains(name),
                _ => true,
            };
            if concerns {
                told.push(event.to_string());
            }
        }
        told.split_off(told.len().saturating_sub(most)).join("\n")
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Begun { life, service } => write!(f, "  life {life} begins: {service:?}"),
            Event::NotBegun { life } => write!(f, "  life {life} does not begin"),
            Event::Submitted { name, first, end, kind, version, .. } => {
                write!(f, "    {name}: {kind:?} of units {first}..{end}")?;
                if let RequestKind::Write { .. } = kind {
                    write!(f, ", write {version}")
                } else {
                    Ok(())
                }
            }
            Event::Answered { name, ok } => {
                write!(f, "    {name} is answered: {}", if *ok { "done" } else { "failed" })
            }
            Event::Cleaned => write!(f, "    cleaning begins"),
            Event::Resized { bytes } => write!(f, "    the cache is to have {bytes} bytes"),
            Event::Created => write!(f, "  a new cache is made"),
            Event::Rotten { byte } => write!(f, "  byte {byte} of the cache device has rotted"),
            Event::DeviceDead { cache, dead } => write!(
                f,
                "    the {} device {}",
                if *cache { "cache" } else { "backing" },
                if *dead { "dies" } else { "is back" }
            ),
            Event::Ended(end) => write!(f, "  it ends: {end:?}"),
        }
    }
}
