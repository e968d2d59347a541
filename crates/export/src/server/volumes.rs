//! Volumes that come, go and grow while the server runs: step by step, each asked of all workers.
//!
//! A volume comes when its device has been made ready, on a thread of its own, and every worker has
//! opened it, and is offered once all have added it. It goes when its clients have been sent away
//! and it has been flushed; if that fails it stays. It grows in the workers first, then for
//! clients.

use std::sync::Arc;

use floe_block::{Kind, VolumeId};
use floe_device::Role;

use super::aside::Aside;
use super::errand::{Admin, Removal, Then};
use super::front::Front;
use super::letter::{Deed, Outcome, Problem};
use super::offer::Offered;
use super::volume::Volume;
use crate::admin::{Addition, Reply, Trouble};
use crate::kept::Keeper;
use crate::status::Snapshot;

impl Front {
    /// The first step of a volume's coming: its device is made ready.
    pub(super) fn add_volume(&mut self, admin: Admin, addition: Addition) -> Result<(), Reply> {
        let Addition { name, backing, read_only, description } = addition;
        if self.offer.named(&name).is_some() {
            return Err(Reply::trouble(
                Trouble::Conflict,
                format!("there is a volume {name:?} already"),
            ));
        }
        self.one_at_a_time()?;
        let paths = self.admin_sessions[admin].paths();
        self.begin_aside(admin, Aside::OpenVolume, move || {
            let check = || backing.paths().iter().try_for_each(|path| paths.check(path));
            check()?;
            let source = backing.prepare(Role::Backing { read_only });
            let source = source.map_err(|error| Problem::Other(error.to_string()))?;
            check()?; // a link may have been changed meanwhile
            let volume = Volume { name, description, backing: Arc::new(source), read_only };
            Ok(Outcome::Prepared(Box::new(volume)))
        })
    }

    /// Its device is ready: all workers open it.
    pub(super) fn volume_prepared(&mut self, admin: Admin, volume: Volume) -> Result<(), Reply> {
        self.offer
            .check(&volume)
            .map_err(|error| Reply::trouble(Trouble::Input, error.to_string()))?;
        let open = Deed::Open { name: volume.name.clone(), source: Arc::clone(&volume.backing) };
        self.ask_all(open, Then::Opened { admin, volume });
        Ok(())
    }

    /// Volumes come, go and grow one after the other, and so do tiers: workers number them alike
    /// only if they do so in one order, and agree on a size only if there is one to agree on.
    pub(super) fn one_at_a_time(&self) -> Result<(), Reply> {
        let changes = |then: &Then| {
            matches!(
                then,
                Then::Aside { .. }
                    | Then::Opened { .. }
                    | Then::Closed { .. }
                    | Then::Added { .. }
                    | Then::Cleared { .. }
                    | Then::Counted { .. }
                    | Then::Retired { .. }
                    | Then::Drained { .. }
                    | Then::Removed { .. }
                    | Then::Resized { .. }
            )
        };
        if self.errands.indices().into_iter().any(|errand| changes(&self.errands[errand].then)) {
            let problem =
                "another volume is being added, removed or resized; try again when that is done";
            return Err(Reply::trouble(Trouble::Conflict, problem));
        }
        if self.restacking.is_some() {
            let problem = "a tier is being added or removed; try again when that is done";
            return Err(Reply::trouble(Trouble::Conflict, problem));
        }
        Ok(())
    }

    pub(super) fn volume_opened(&mut self, admin: Admin, volume: Volume, problem: Option<Problem>) {
        match problem {
            None => {
                self.ask_all(Deed::Add { name: volume.name.clone() }, Then::Added { admin, volume })
            }
            Some(problem) => {
                let then = Then::Closed { admin, problem: problem.to_string() };
                self.ask_all(Deed::Close { name: volume.name }, then);
            }
        }
    }

    pub(super) fn volume_refused(&mut self, admin: Admin, problem: String) {
        self.tell_admin(admin, &Reply::trouble(Trouble::Failed, problem));
    }

    pub(super) fn volume_added(&mut self, admin: Admin, ids: Vec<VolumeId>, volume: Volume) {
        if !self.keeps_anything() {
            return self.offer_volume(admin, ids, volume);
        }
        // The volume's own drain makes durable, in every tier, that nothing is left of another one
        // of its number.
        self.flush(vec![ids[0]], Kind::Drain, Then::Cleared { admin, ids, volume });
    }

    pub(super) fn volume_cleared(
        &mut self,
        admin: Admin,
        ids: Vec<VolumeId>,
        volume: Volume,
        problem: Option<Problem>,
    ) {
        let problem = problem.map(|problem| problem.to_string());
        match problem.or_else(|| self.written_down(&ids, |keeper, id| keeper.add(id, &volume))) {
            None => self.offer_volume(admin, ids, volume),
            Some(problem) => {
                self.remove_from(Removal { admin, id: ids[0], refused: Some(problem) }, 0)
            }
        }
    }

    /// Has a volume forgotten in one tier by all workers: a worker that still has it may ask any
    /// other for what is in the tier below.
    fn remove_from(&mut self, removal: Removal, tier: usize) {
        let deed = Deed::Remove { tier, volume: removal.id };
        self.ask_all(deed, Then::Removed { removal, tier });
    }

    /// A volume is forgotten in one tier, or could not be.
    pub(super) fn volume_removed_from(
        &mut self,
        removal: Removal,
        tier: usize,
        problem: Option<Problem>,
    ) {
        match problem {
            Some(problem) if tier > 0 || removal.refused.is_some() => {
                let problem = format!(
                    "the volume is not served any more, but tier {tier} still has it: {problem}"
                );
                self.volume_refused(removal.admin, problem);
            }
            Some(problem) => self.keep_volume(removal.admin, removal.id, &problem),
            None if tier + 1 < self.tiers.len() => self.remove_from(removal, tier + 1),
            None => match removal.refused {
                Some(problem) => self.volume_refused(removal.admin, problem),
                None => self.volume_removed(removal.admin, removal.id),
            },
        }
    }

    fn offer_volume(&mut self, admin: Admin, ids: Vec<VolumeId>, volume: Volume) {
        let (name, bytes) = (volume.name.clone(), volume.backing.size_bytes());
        let offered = Offered { id: ids[0], ids, volume, bytes, leaving: false };
        let reply = match self.offer.change(|volumes| volumes.push(offered)) {
            Ok(()) => {
                tracing::info!(volume = %name, bytes, "volume added");
                self.announce();
                Reply::Done("added")
            }
            Err(error) => Reply::trouble(Trouble::Failed, error.to_string()),
        };
        self.tell_admin(admin, &reply);
    }

    /// The first step of a volume's going: whether anybody uses it.
    pub(super) fn remove_volume(
        &mut self,
        admin: Admin,
        name: &str,
        force: bool,
    ) -> Result<(), Reply> {
        let id = self.present(name)?.id;
        self.one_at_a_time()?;
        self.ask_all(Deed::Snapshot, Then::Counted { admin, id, force });
        Ok(())
    }

    /// The second one: it is not offered any more, and its clients, of which there are none unless
    /// by `force`, are sent away.
    pub(super) fn volume_counted(
        &mut self,
        admin: Admin,
        id: VolumeId,
        force: bool,
        threads: &[Snapshot],
    ) {
        let of =
            |thread: &Snapshot| thread.connections.get(usize::from(id.0)).copied().unwrap_or(0);
        let clients: u64 = threads.iter().map(of).sum();
        let name = self.offer.get(id).map_or("", |offered| offered.volume.name.as_str());
        if clients > 0 && !force {
            let uses = if clients == 1 { "client uses" } else { "clients use" };
            let problem =
                format!("{clients} {uses} volume {name:?}; --force (?force) hangs up on them");
            return self.tell_admin(admin, &Reply::trouble(Trouble::Conflict, problem));
        }
        if clients > 0 {
            tracing::warn!(volume = %name, clients, "hanging up on clients, for the volume is removed by force");
        }
        self.set_leaving(id, true);
        self.ask_all(Deed::Retire(id), Then::Retired { admin, id });
    }

    /// The volume of this name, if it is there and stays.
    fn present(&self, name: &str) -> Result<&Offered, Reply> {
        match self.offer.named(name) {
            None => Err(Reply::trouble(Trouble::NotFound, format!("there is no volume {name:?}"))),
            Some(offered) if offered.leaving => {
                Err(Reply::trouble(Trouble::Conflict, format!("volume {name:?} is being removed")))
            }
            Some(offered) => Ok(offered),
        }
    }

    fn set_leaving(&mut self, id: VolumeId, leaving: bool) {
        let change = |volumes: &mut Vec<Offered>| {
            volumes
                .iter_mut()
                .filter(|offered| offered.id == id)
                .for_each(|offered| offered.leaving = leaving);
        };
        self.offer.change(change).expect("a part of what can be offered can be");
        self.announce();
    }

    pub(super) fn volume_drained(&mut self, admin: Admin, id: VolumeId, problem: Option<Problem>) {
        match problem {
            None => self.remove_from(Removal { admin, id, refused: None }, 0),
            Some(problem) => self.keep_volume(admin, id, &problem),
        }
    }

    fn keep_volume(&mut self, admin: Admin, id: VolumeId, problem: &Problem) {
        self.set_leaving(id, false);
        let problem = format!("the volume stays, since its last flush failed: {problem}");
        self.tell_admin(admin, &Reply::trouble(Trouble::Failed, problem));
    }

    fn volume_removed(&mut self, admin: Admin, id: VolumeId) {
        let offered = self.offer.get(id);
        let (name, ids) =
            offered.map_or_else(Default::default, |it| (it.volume.name.clone(), it.ids.clone()));
        let change = |volumes: &mut Vec<Offered>| volumes.retain(|offered| offered.id != id);
        self.offer.change(change).expect("a part of what can be offered can be");
        tracing::info!(volume = %name, "volume removed");
        let reply = match self.written_down(&ids, Keeper::remove) {
            None => Reply::Done("removed"),
            Some(problem) => {
                Reply::trouble(Trouble::Failed, format!("the volume is removed, but {problem}"))
            }
        };
        self.tell_admin(admin, &reply);
    }

    /// Lets a volume have the size its device has by now, or less of it.
    pub(super) fn resize_volume(
        &mut self,
        admin: Admin,
        name: &str,
        wanted: Option<u64>,
    ) -> Result<(), Reply> {
        let offered = self.present(name)?;
        self.one_at_a_time()?;
        let (id, backing) = (offered.id, Arc::clone(&offered.volume.backing));
        self.begin_aside(admin, Aside::MeasureVolume { id, wanted }, move || {
            match backing.refresh() {
                Ok(_) => Ok(Outcome::Nothing),
                Err(error) => Err(Problem::Other(error.to_string())),
            }
        })
    }

    /// The size of its device is known.
    pub(super) fn volume_measured(
        &mut self,
        admin: Admin,
        id: VolumeId,
        wanted: Option<u64>,
    ) -> Result<(), Reply> {
        let offered = self.offer.get(id).expect("volumes stay while one is measured");
        let (name, before) = (&offered.volume.name, offered.bytes);
        let there = offered.volume.backing.size_bytes();
        let bytes = wanted.unwrap_or(there);
        let refuse = |problem| Err(Reply::trouble(Trouble::Conflict, problem));
        if bytes > there {
            return refuse(format!(
                "the backing device has {there} bytes, not {bytes}: enlarge it first"
            ));
        }
        if !bytes.is_multiple_of(512) {
            return refuse(format!("{bytes} bytes are no size: it has to be a multiple of 512"));
        }
        if bytes < before {
            return refuse(format!(
                "volume {name:?} has {before} bytes: it can grow, but not shrink to {bytes}"
            ));
        }
        self.ask_all(Deed::Resize(id, bytes), Then::Resized { admin, id, bytes });
        Ok(())
    }

    pub(super) fn volume_resized(
        &mut self,
        admin: Admin,
        id: VolumeId,
        bytes: u64,
        problem: Option<Problem>,
    ) {
        if let Some(problem) = problem {
            return self.tell_admin(admin, &Reply::trouble(Trouble::Failed, problem.to_string()));
        }
        let offered = self.offer.get(id);
        let there = offered.map_or(bytes, |offered| offered.volume.backing.size_bytes());
        let ids = offered.map_or_else(Vec::new, |offered| offered.ids.clone());
        if let Some(problem) = self.written_down(&ids, |keeper, id| keeper.resize(id, there)) {
            return self.tell_admin(admin, &Reply::trouble(Trouble::Failed, problem));
        }
        let change = |volumes: &mut Vec<Offered>| {
            volumes
                .iter_mut()
                .filter(|offered| offered.id == id)
                .for_each(|offered| offered.bytes = bytes);
        };
        let reply = match self.offer.change(change) {
            Ok(()) => {
                let name = self.offer.get(id).map_or("", |offered| &offered.volume.name);
                tracing::info!(volume = name, bytes, "volume resized");
                self.announce();
                Reply::Done("resized")
            }
            Err(error) => Reply::trouble(Trouble::Failed, error.to_string()),
        };
        self.tell_admin(admin, &reply);
    }
}
