//! The admin interface: HTTP on a Unix socket, and optionally on TCP with fewer rights
//! ([`AdminAddress`], `access`).
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | the live page (`live`) |
//! | `GET /events` | events for the live page, until the client closes the connection |
//! | `GET /status` | [`Status`](crate::status::Status) as JSON |
//! | `GET /metrics` | all metrics, in Prometheus' text format |
//! | `GET /healthz` | `ok` or `degraded`; 503 when requests hang or are refused, and at the end |
//! | `POST /flush` | after everything written so far is on the backing devices |
//! | `POST /stop` | after requests in flight and the last flush, just before the server ends |
//! | `POST /cache/restore` | after a failed cache device is in use again |
//! | `GET /volumes` | a list of [`VolumeStatus`](crate::status::VolumeStatus) as JSON |
//! | `POST /volumes` | adds the volume that a [`NewVolume`] as JSON describes |
//! | `DELETE /volumes/NAME` | removes an unused volume after its dirty data is written back |
//! | `DELETE /volumes/NAME?force` | removes a volume even if clients use it |
//! | `POST /volumes/NAME/resize` | gives a volume the size in a [`Resize`] as JSON |
//! | `POST /volumes/NAME/limit` | changes a volume's limits as a [`LimitChange`] as JSON says |
//! | `POST /volumes/NAME/share` | changes a volume's share as a [`ShareChange`] as JSON says |
//! | `POST /volumes/NAME/warm` | after the part in a [`VolumePart`] as JSON is in the cache |
//! | `POST /volumes/NAME/evict` | after the part in a [`VolumePart`] as JSON has left the cache |
//! | `POST /volumes/NAME/ana` | sets the access of NVMe hosts to that in a [`SetAccess`] as JSON |
//! | `GET /tiers` | a list of [`TierStatus`](crate::status::TierStatus) as JSON, from the top |
//! | `POST /tiers` | attaches the tier that a [`NewTier`] as JSON describes |
//! | `DELETE /tiers/NUMBER` | detaches a tier after its dirty data is in the tier below |
//! | `POST /tiers/NUMBER/resize` | gives a tier the size in a [`NewSize`] as JSON |
//!
//! A failed request is answered with a line that gives the reason. The status is 400 for an invalid
//! request and 403 for a missing right. It is 404 or 409 for a conflict with the present volumes
//! and tiers, 500 for a failure, and 503 while the server ends or is busy.
//!
//! `Conversation` is the server's side of one connection, without I/O: bytes in, one
//! `AdminCommand`, one `Reply`, and the connection closes. [`client`] is the other side, for `floe
//! status` and similar commands.

mod access;
mod address;
pub mod client;
mod command;
mod conversation;

pub use access::{AllowedPaths, PathRefused, Token, TokenError};
pub use address::{AddressError, AdminAddress, AdminChoice, NoDefaultAddress};
pub use command::{AnaState, NewSize, NewTier, NewVolume, PageKey, Resize, SetAccess, VolumePart};

pub use crate::total_limit::TotalLimitChange;
pub use crate::volume_limit::LimitChange;
pub use crate::volume_share::ShareChange;

pub(crate) use access::{Access, NetworkRules, name_in};
pub(crate) use command::{Addition, AdminCommand, REPLACING, Reply, Trouble};
pub(crate) use conversation::{Conversation, Heard};
