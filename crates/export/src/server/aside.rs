//! Steps that may take their time and concern no worker, such as opening a device: each runs on a
//! thread of its own, so that the control thread goes on serving.
//!
//! Opening a device can take as long as the device likes. When the server ends meanwhile, whoever
//! asked is told so at once, and what comes of it is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;

use floe_block::VolumeId;

use super::errand::{Admin, Errand, Then};
use super::front::{Front, Phase};
use super::letter::{News, Outcome, Problem};
use super::restack::ending;
use crate::admin::{Reply, Trouble};

/// A step that runs aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aside {
    /// The device of a volume to come is opened.
    OpenVolume,
    /// The device of a volume that is to grow is measured.
    MeasureVolume {
        id: VolumeId,
        /// The size that was asked for, if one was.
        wanted: Option<u64>,
    },
}

impl Front {
    /// Does it on a thread of its own.
    pub(super) fn begin_aside(
        &mut self,
        admin: Admin,
        what: Aside,
        job: impl FnOnce() -> Result<Outcome, Problem> + Send + 'static,
    ) -> Result<(), Reply> {
        let errand = self.errands.insert(Errand::new(1, Then::Aside { admin: Some(admin), what }));
        let news = Arc::clone(&self.news);
        let run = move || {
            let panicked = |_| Err(Problem::Other("opening the device panicked".to_owned()));
            let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(panicked);
            news.post(News::Done { worker: 0, errand, result });
        };
        Builder::new().name("floe-aside".to_owned()).spawn(run).map(drop).map_err(|error| {
            self.errands.remove(errand);
            Reply::trouble(Trouble::Failed, format!("cannot start a thread: {error}"))
        })
    }

    /// It is done: what comes next, if anybody still waits for it.
    pub(super) fn aside_done(&mut self, admin: Option<Admin>, what: Aside, errand: Errand) {
        let Some(admin) = admin else { return };
        let next = match (what, errand.problem, errand.prepared) {
            _ if self.phase != Phase::Serving => Err(ending()),
            (Aside::OpenVolume, Some(problem), _) => {
                Err(Reply::trouble(trouble(&problem), problem.to_string()))
            }
            (Aside::OpenVolume, None, volume) => {
                self.volume_prepared(admin, *volume.expect("without a problem there is a volume"))
            }
            (Aside::MeasureVolume { .. }, Some(problem), _) => {
                Err(Reply::trouble(Trouble::Conflict, problem.to_string()))
            }
            (Aside::MeasureVolume { id, wanted }, None, _) => {
                self.volume_measured(admin, id, wanted)
            }
        };
        if let Err(reply) = next {
            self.tell_admin(admin, &reply);
        }
    }

    /// The server ends, and waits for nothing that is done aside.
    pub(super) fn leave_aside(&mut self) {
        let mut waiting = Vec::new();
        for errand in self.errands.indices() {
            if let Then::Aside { admin, .. } = &mut self.errands[errand].then {
                waiting.extend(admin.take());
            }
        }
        waiting.extend(self.tier_maker_waits());
        waiting.into_iter().for_each(|admin| self.tell_admin(admin, &ending()));
    }
}

fn trouble(problem: &Problem) -> Trouble {
    match problem {
        Problem::Path(_) => Trouble::Forbidden,
        _ => Trouble::Input,
    }
}
