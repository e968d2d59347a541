//! The reservation of a namespace: its registrants, its holder, and the rules of each command.
//!
//! A state machine without clocks, locks and files. A refused command changes nothing.
//!
//! Specification: NVM Express Base 2.0, section 8.19. Where it leaves a choice:
//!
//! - A key of zero is refused, because Reservation Acquire gives it another meaning.
//! - Replace with IEKEY registers a host that is not registered, as Windows expects.
//! - A host that preempts never loses its own registration.

mod shared;

use std::collections::BTreeMap;

use super::TRANSFER_MAX_BYTES;
use crate::wire::{NvmeCommand, Status, io};

pub(super) use shared::{QueueGuard, ReservationLog};
pub use shared::{ReservationChange, ReservationStore, Reservations};

/// Identifier of a host: that of its Connect commands.
pub type HostId = [u8; 16];

/// Maximum number of registrants of a namespace.
pub const REGISTRANTS_MAX: usize = 1024;

/// The access that a reservation leaves to hosts that do not hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationType {
    /// The holder alone may write.
    WriteExclusive = 1,
    /// The holder alone may read or write.
    ExclusiveAccess = 2,
    /// Registrants alone may write; one of them is the holder.
    WriteExclusiveRegistrants = 3,
    /// Registrants alone may read or write; one of them is the holder.
    ExclusiveAccessRegistrants = 4,
    /// Registrants alone may write; all of them are holders.
    WriteExclusiveAll = 5,
    /// Registrants alone may read or write; all of them are holders.
    ExclusiveAccessAll = 6,
}

impl ReservationType {
    const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];

    /// Returns the type with this code.
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the code of the type in commands and in the report.
    pub fn code(self) -> u8 {
        self as u8
    }

    fn bars_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }

    /// Returns whether all registrants may do what the holder may do.
    fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns whether all registrants are holders.
    pub fn is_held_by_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }
}

/// The change that a host asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Register {
        key: u64,
    },
    Unregister {
        /// Present key of the host; `None` if it is not checked.
        key: Option<u64>,
    },
    Replace {
        /// Present key of the host; `None` if it is not checked.
        old: Option<u64>,
        new: u64,
    },
    Acquire {
        key: u64,
        kind: ReservationType,
    },
    Preempt {
        key: u64,
        preempted: u64,
        kind: ReservationType,
    },
    Release {
        key: u64,
        /// Code of the reservation's type.
        kind: u8,
    },
    Clear {
        key: u64,
    },
    /// Change nothing but the persistence.
    Persist,
}

/// A parsed command: the change, and the new setting of persistence if the command has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReservationOrder {
    pub(super) action: Action,
    pub(super) persists: Option<bool>,
}

impl ReservationOrder {
    /// Parses a command and its data.
    ///
    /// # Errors
    /// When a field has a value that is reserved or not supported.
    pub(super) fn parse(command: &NvmeCommand, data: &[u8]) -> Result<Self, Refusal> {
        let word = command.word(10);
        let key_at = |at: usize| {
            u64::from_le_bytes(data[at..at + 8].try_into().expect("the length was checked"))
        };
        let (number, ignores_key, code) = (word & 7, word & 1 << 3 != 0, (word >> 8) as u8);
        let kind = || ReservationType::of(code).ok_or(Refusal::InvalidField);
        let key = key_at(0);
        if command.opcode() == io::RESERVATION_REGISTER {
            let persists = match word >> 30 {
                0 => None,
                2 => Some(false),
                3 => Some(true),
                _ => return Err(Refusal::InvalidField),
            };
            let checked = (!ignores_key).then_some(key);
            let new = key_at(8);
            let action = match number {
                0 if new != 0 => Action::Register { key: new },
                1 => Action::Unregister { key: checked },
                2 if new == 0 => Action::Unregister { key: checked }, // as Linux does
                2 => Action::Replace { old: checked, new },
                _ => return Err(Refusal::InvalidField),
            };
            return Ok(Self { action, persists });
        }
        let action = match (command.opcode(), number) {
            _ if ignores_key => return Err(Refusal::InvalidField),
            (io::RESERVATION_ACQUIRE, 0) => Action::Acquire { key, kind: kind()? },
            (io::RESERVATION_ACQUIRE, 1 | 2) => {
                Action::Preempt { key, preempted: key_at(8), kind: kind()? }
            }
            (io::RESERVATION_RELEASE, 0) => Action::Release { key, kind: code },
            (io::RESERVATION_RELEASE, 1) => Action::Clear { key },
            _ => return Err(Refusal::InvalidField),
        };
        Ok(Self { action, persists: None })
    }
}

/// The reason for which a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The host's registration or the reservation does not allow it.
    Conflict,
    /// A field has a wrong value.
    InvalidField,
    /// The namespace has as many registrants as it may have.
    Full,
}

impl Refusal {
    pub(super) fn status(self) -> Status {
        let status = match self {
            Self::Conflict => Status::RESERVATION_CONFLICT,
            Self::InvalidField => Status::INVALID_FIELD,
            Self::Full => Status::INTERNAL_ERROR,
        };
        status.final_()
    }
}

/// An event that registrants are notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Notice {
    /// Another host has removed the registration.
    RegistrationPreempted = 1,
    /// The reservation was released.
    ReservationReleased = 2,
    /// Another host has cleared the reservation.
    ReservationPreempted = 3,
}

/// The reservation of a namespace and its registrants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Key of each registered host.
    registrants: BTreeMap<HostId, u64>,
    held: Option<Held>,
    generation: u32,
    /// Everything survives a restart of the server.
    persists: bool,
}

/// A reservation that is held. `holder` is `None` if all registrants are holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    kind: ReservationType,
    holder: Option<HostId>,
}

impl Held {
    fn by(host: HostId, kind: ReservationType) -> Self {
        Self { kind, holder: (!kind.is_held_by_all()).then_some(host) }
    }
}

impl Reservation {
    /// Recreates a reservation from its parts, `None` if they contradict each other. `holder` is
    /// the host that holds a reservation of this type, or `None` if all registrants do.
    pub fn restore(
        registrants: BTreeMap<HostId, u64>,
        held: Option<(ReservationType, Option<HostId>)>,
        generation: u32,
    ) -> Option<Self> {
        let held = held.map(|(kind, holder)| Held { kind, holder });
        let is_held_well = held.is_none_or(|held| match held.holder {
            Some(host) => !held.kind.is_held_by_all() && registrants.contains_key(&host),
            None => held.kind.is_held_by_all() && !registrants.is_empty(),
        });
        let has_good_keys = registrants.values().all(|&key| key != 0);
        let is_good = is_held_well && has_good_keys && registrants.len() <= REGISTRANTS_MAX;
        is_good.then_some(Self { registrants, held, generation, persists: true })
    }

    /// Returns the registered hosts and their keys.
    pub fn registrants(&self) -> &BTreeMap<HostId, u64> {
        &self.registrants
    }

    /// Returns the type of the reservation that is held, and its holder unless all registrants hold
    /// it.
    pub fn held(&self) -> Option<(ReservationType, Option<HostId>)> {
        self.held.map(|held| (held.kind, held.holder))
    }

    /// Returns the number of changes so far, as far as the specification counts them.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether the reservation survives a restart of the server.
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// Returns whether a host may read, or write if `writes`.
    pub(super) fn allows(&self, host: &HostId, writes: bool) -> bool {
        let Some(Held { kind, holder }) = self.held else { return true };
        if !writes && !kind.bars_reads() {
            return true;
        }
        match kind.admits_registrants() {
            true => self.registrants.contains_key(host),
            false => holder.as_ref() == Some(host),
        }
    }

    /// Returns whether each host has the same access with this reservation as with another one.
    fn leaves_same_access_as(&self, other: &Self) -> bool {
        let has_same_hosts = || self.registrants.keys().eq(other.registrants.keys());
        self.held == other.held && (self.held.is_none() || has_same_hosts())
    }

    fn holds(&self, host: &HostId) -> bool {
        self.held.is_some_and(|held| match &held.holder {
            Some(holder) => holder == host,
            None => self.registrants.contains_key(host),
        })
    }

    /// Carries out a host's command. Returns the hosts to notify.
    ///
    /// # Errors
    /// When the command is refused; nothing has changed then.
    pub(super) fn apply(
        &mut self,
        host: &HostId,
        order: ReservationOrder,
    ) -> Result<Vec<(HostId, Notice)>, Refusal> {
        let own = self.registrants.get(host).copied();
        let checked = |key: u64| if own == Some(key) { Ok(()) } else { Err(Refusal::Conflict) };
        let mut notices = Vec::new();
        let mut counts = true;
        match order.action {
            Action::Register { key } => {
                if own.is_none() {
                    self.register(host, key)?;
                }
                self.registrants.get(host).filter(|&&is| is == key).ok_or(Refusal::Conflict)?;
            }
            Action::Unregister { key } => {
                let own = own.ok_or(Refusal::Conflict)?;
                checked(key.unwrap_or(own))?;
                self.unregister(host, &mut notices);
            }
            Action::Replace { old, new } => {
                if let Some(old) = old {
                    checked(old)?;
                }
                self.register(host, new)?;
            }
            Action::Acquire { key, kind } => {
                checked(key)?;
                let has_it = self.holds(host) && self.has_type(kind);
                if self.held.is_some() && !has_it {
                    return Err(Refusal::Conflict);
                }
                self.held = Some(Held::by(*host, kind));
                counts = false;
            }
            Action::Preempt { key, preempted, kind } => {
                checked(key)?;
                self.preempt(host, preempted, kind, &mut notices)?;
            }
            Action::Release { key, kind } => {
                checked(key)?;
                if let Some(held) = self.held.filter(|_| self.holds(host)) {
                    if held.kind.code() != kind {
                        return Err(Refusal::InvalidField);
                    }
                    self.held = None;
                    if held.kind.admits_registrants() {
                        self.tell_others(host, Notice::ReservationReleased, &mut notices);
                    }
                }
                counts = false;
            }
            Action::Clear { key } => {
                checked(key)?;
                self.tell_others(host, Notice::ReservationPreempted, &mut notices);
                self.registrants.clear();
                self.held = None;
            }
            Action::Persist => {
                if own.is_none() && !self.registrants.is_empty() {
                    return Err(Refusal::Conflict);
                }
                counts = false;
            }
        }
        debug_assert!(
            self.held.is_none_or(|held| match held.holder {
                Some(holder) => self.registrants.contains_key(&holder),
                None => !self.registrants.is_empty(),
            }),
            "a holder is a registrant"
        );
        self.persists = order.persists.unwrap_or(self.persists);
        self.generation = self.generation.wrapping_add(counts.into());
        Ok(notices)
    }

    fn has_type(&self, kind: ReservationType) -> bool {
        self.held.is_some_and(|held| held.kind == kind)
    }

    fn register(&mut self, host: &HostId, key: u64) -> Result<(), Refusal> {
        let is_new = !self.registrants.contains_key(host);
        if is_new && self.registrants.len() >= REGISTRANTS_MAX {
            return Err(Refusal::Full);
        }
        self.registrants.insert(*host, key);
        Ok(())
    }

    /// Removes a host's registration, and with it the reservation if no holder is left.
    fn unregister(&mut self, host: &HostId, notices: &mut Vec<(HostId, Notice)>) {
        let Some(held) = self.held.filter(|_| self.holds(host)) else {
            self.registrants.remove(host);
            return;
        };
        self.registrants.remove(host);
        let others_hold = held.holder.is_none() && !self.registrants.is_empty();
        if !others_hold {
            self.held = None;
            if held.kind.admits_registrants() {
                self.tell_others(host, Notice::ReservationReleased, notices);
            }
        }
    }

    fn preempt(
        &mut self,
        host: &HostId,
        preempted: u64,
        kind: ReservationType,
        notices: &mut Vec<(HostId, Notice)>,
    ) -> Result<(), Refusal> {
        let is_match = |key: u64| preempted == 0 || key == preempted;
        // Zero means all other registrants, but only if all of them are holders.
        let takes_over = match self.held {
            Some(Held { holder: None, .. }) => preempted == 0,
            Some(Held { holder: Some(holder), .. }) => {
                if preempted == 0 {
                    return Err(Refusal::InvalidField);
                }
                self.registrants[&holder] == preempted
            }
            None => false,
        };
        let is_any = self.registrants.values().any(|&key| key == preempted);
        if !takes_over && !is_any {
            return Err(Refusal::Conflict);
        }
        self.registrants.retain(|other, key| {
            let stays = other == host || !is_match(*key);
            if !stays {
                notices.push((*other, Notice::RegistrationPreempted));
            }
            stays
        });
        if takes_over {
            let had_type = self.has_type(kind);
            self.held = Some(Held::by(*host, kind));
            if !had_type {
                self.tell_others(host, Notice::ReservationReleased, notices);
            }
        }
        Ok(())
    }

    /// Adds a notice for each registrant but this host.
    fn tell_others(&self, host: &HostId, notice: Notice, notices: &mut Vec<(HostId, Notice)>) {
        let others = self.registrants.keys().filter(|other| *other != host);
        notices.extend(others.map(|other| (*other, notice)));
    }

    /// Returns the report: the extended data structure, in which hosts have 128 bits.
    ///
    /// Controllers are made for each connection, so entries name hosts and no controller.
    fn report(&self) -> Vec<u8> {
        const ENTRY_BYTES: usize = 64;
        const NO_CONTROLLER: [u8; 2] = [0xff; 2];
        let mut report = vec![0; ENTRY_BYTES];
        report[..4].copy_from_slice(&self.generation.to_le_bytes());
        report[4] = self.held.map_or(0, |held| held.kind.code());
        report[5..7].copy_from_slice(&(self.registrants.len() as u16).to_le_bytes());
        report[9] = self.persists.into();
        for (host, key) in &self.registrants {
            let mut entry = [0; ENTRY_BYTES];
            entry[..2].copy_from_slice(&NO_CONTROLLER);
            entry[2] = self.holds(host).into();
            entry[8..16].copy_from_slice(&key.to_le_bytes());
            entry[16..32].copy_from_slice(host);
            report.extend_from_slice(&entry);
        }
        report
    }

    /// Returns the part of the report that a command asks for, padded with zeros.
    ///
    /// # Errors
    /// When the command asks for host identifiers of 64 bits, or for too much.
    pub(super) fn report_for(&self, command: &NvmeCommand) -> Result<Vec<u8>, Status> {
        let bytes = 4 * (u64::from(command.word(10)) + 1);
        if command.word(11) & 1 == 0 {
            return Err(Status::HOST_ID_FORMAT.final_());
        }
        if bytes > u64::from(TRANSFER_MAX_BYTES) {
            return Err(Status::INVALID_FIELD.final_());
        }
        let mut report = self.report();
        report.resize(bytes as usize, 0);
        Ok(report)
    }
}

#[cfg(test)]
mod tests;
