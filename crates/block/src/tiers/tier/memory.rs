//! Orders about the memory tier.

use super::buffers::Buffers;
use crate::geometry::{Sectors, VolumeId};
use crate::order::Paging;
use crate::tiers::memory::Pages;

/// Executes an order about the memory tier.
pub(super) fn page(
    pages: &mut Pages,
    buffers: &Buffers,
    volume: VolumeId,
    sectors: Sectors,
    deed: Paging,
) {
    match deed {
        Paging::Fill { from } => pages.fill(volume, sectors, &buffers.slice(&from)),
        Paging::Forget => pages.forget(volume, sectors),
        Paging::Hold { from } => pages.hold(volume, sectors, &buffers.slice(&from)),
        Paging::Recall { to } => pages.recall(volume, sectors, &buffers.slice(&to)),
        Paging::LetGo => pages.let_go(volume, sectors),
    }
}
