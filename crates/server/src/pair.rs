//! A failover pair: two servers of the same images of Ceph, of which one serves.
//!
//! The images' exclusive locks say which one that is. The server that has them, the *active* one,
//! keeps a lease: a record in a note beside the first image, which it renews. The other, the
//! *standby*, looks at the record. Where it has stood still for longer than the lease, the standby
//! fences the owner of the locks and takes them. An active server that could not renew its lease in
//! time ends itself before it answers anything more. Which server may serve is Ceph's word alone:
//! there is no vote here, and no message between the two.

mod last_half;
mod lease;
mod own;
mod record;
mod turn;
mod watching;

pub use last_half::LastHalf;
pub use lease::{Lease, LeaseError};
pub use own::OwnNote;
pub use record::LeaseRecord;
pub use turn::{LOST_TURN, PairStatus, Role, StandbyStatus, Turn};
pub use watching::{StandbyError, Waited, stand_by};
