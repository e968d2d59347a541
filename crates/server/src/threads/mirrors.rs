//! Log lines of mirrors: halves that leave, return and are in sync again, or were mended.

use std::cell::RefCell;

use floe_device::MirrorStatus;

/// Returns a function that logs the difference between the states it is called with.
pub(super) fn log() -> impl Fn(&MirrorStatus) + Send + 'static {
    let last: RefCell<Option<MirrorStatus>> = RefCell::default();
    move |status| {
        let before = last.replace(Some(status.clone()));
        for (at, half) in status.halves.iter().enumerate() {
            let was = before.as_ref().map_or("in-sync", |before| before.halves[at].state);
            let (name, generation) = (&half.name, status.generation);
            let error = half.error.as_deref().unwrap_or_default();
            let mended = before.as_ref().map_or(0, |before| before.halves[at].mended_bytes);
            if half.mended_bytes > mended {
                let bytes = half.mended_bytes - mended;
                tracing::warn!(
                    half = %name, bytes, all_bytes = half.mended_bytes,
                    "a half did not have what was stored, and got it from another one"
                );
            }
            match half.state {
                state if state == was => {}
                "in-sync" => tracing::info!(half = %name, generation, "a half is in sync again"),
                "resync" => {
                    let bytes = status.resync_bytes;
                    tracing::info!(half = %name, bytes, "a half is back and is brought up to date");
                }
                _ => tracing::error!(
                    half = %name, generation, %error,
                    "a half has left the mirror, which goes on without it"
                ),
            }
        }
        let was_fenced = before.as_ref().is_some_and(|before| before.fenced);
        if status.fenced && !was_fenced {
            tracing::error!("another server has the mirror: nothing of it is served");
        }
        let knew = before.as_ref().is_some_and(|before| before.witness_error.is_some());
        if let Some(error) = status.witness_error.as_ref().filter(|_| !knew) {
            tracing::error!(%error, "the witness of the mirror does not take its generation");
        }
    }
}
