//! A policy chosen at run time.
//!
//! For owners whose type should not depend on the policy, as a cache told its policy by a
//! configuration file. Each call is a match over all policies instead of a virtual one, and a hit
//! matches over the few kinds of marks there are, always with the same outcome, so the processor
//! predicts it.

use std::fmt;
use std::str::FromStr;

use crate::lhd::AgedHits;
use crate::registry::{Choice, ChoiceError};
use crate::{
    Access, AlwaysPromote, Coins, Counters, Cursor, Eviction, HitKind, LastUses, Marks, NoMarks,
    Plain, Policy, PolicyInfo, Replacement, Slot, Stamps, Touch, TryPromote,
};

macro_rules! define_order {
    (() $($module:ident::$Policy:ident,)*) => {
        #[derive(Debug, Clone)]
        enum AnyOrder {
            $($Policy(Box<crate::$Policy>),)*
        }

        impl AnyOrder {
            fn of(choice: &Choice) -> Self {
                $(
                    if choice.name() == <crate::$Policy as Policy>::INFO.name {
                        return Self::$Policy(Box::new(Policy::new(&choice.parameters)));
                    }
                )*
                unreachable!("a choice names a registered policy")
            }
        }
    };
}
with_policies!(define_order);

/// The same done with `order`, whichever policy it is of.
macro_rules! each {
    (($any:expr, |$order:ident| $does:expr) $($module:ident::$Policy:ident,)*) => {
        match $any {
            $(AnyOrder::$Policy($order) => $does,)*
        }
    };
}

/// Any registered policy.
///
/// ```
/// use floe_policy::{Access, AnyPolicy, Eviction, Slot};
///
/// let mut order: AnyPolicy = "slru:segments=2".parse()?;
/// order.reserve(1);
/// order.insert(Slot(0), &Access::new(10));
/// assert_eq!(order.evict(None), Some(Slot(0)));
/// # Ok::<(), floe_policy::registry::ChoiceError>(())
/// ```
#[derive(Clone)]
pub struct AnyPolicy {
    order: AnyOrder,
    marks: AnyMarks,
}

impl AnyPolicy {
    /// An empty order without room.
    pub fn new(choice: &Choice) -> Self {
        let order = AnyOrder::of(choice);
        Self { marks: marks_of(&order), order }
    }
}

fn marks_of(order: &AnyOrder) -> AnyMarks {
    fn of(order: &impl Eviction<Marks: Into<AnyMarks>>) -> AnyMarks {
        order.marks().clone().into()
    }
    with_policies!(each order, |order| of(&**order))
}

impl FromStr for AnyPolicy {
    type Err = ChoiceError;

    /// Reads a [`Choice`], such as `slru:segments=2`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        Ok(Self::new(&text.parse()?))
    }
}

impl fmt::Debug for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.order.fmt(f)
    }
}

impl Replacement for AnyPolicy {
    fn info(&self) -> &'static PolicyInfo {
        with_policies!(each & self.order, |order| order.info())
    }
}

impl Eviction for AnyPolicy {
    type Marks = AnyMarks;

    #[inline]
    fn marks(&self) -> &AnyMarks {
        &self.marks
    }

    fn reserve(&mut self, slots: usize) {
        with_policies!(each &mut self.order, |order| order.reserve(slots));
        self.marks = marks_of(&self.order);
    }

    fn expect(&mut self, slots: usize) {
        with_policies!(each &mut self.order, |order| order.expect(slots));
    }

    fn set_capacity(&mut self, weight: u64) {
        with_policies!(each &mut self.order, |order| order.set_capacity(weight));
    }

    fn len(&self) -> usize {
        with_policies!(each & self.order, |order| order.len())
    }

    fn promote(&mut self, slot: Slot) {
        with_policies!(each &mut self.order, |order| order.promote(slot));
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        with_policies!(each &mut self.order, |order| order.insert(slot, access));
    }

    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        with_policies!(each &mut self.order, |order| order.evict(incoming))
    }

    fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        with_policies!(each &mut self.order, |order| order.victim(incoming))
    }

    fn remove(&mut self, slot: Slot) {
        with_policies!(each &mut self.order, |order| order.remove(slot));
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        with_policies!(each &mut self.order, |order| order.transfer(from, to));
    }

    fn access(&mut self, slot: Slot) {
        with_policies!(each &mut self.order, |order| order.access(slot));
    }

    fn hit(&mut self, slot: Slot, access: &Access) {
        with_policies!(each &mut self.order, |order| order.hit(slot, access));
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        with_policies!(each &mut self.order, |order| order.reweigh(slot, weight));
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        with_policies!(each & self.order, |order| order.rank(from, out))
    }

    fn freeze(&mut self, slots: &[Slot]) {
        with_policies!(each &mut self.order, |order| order.freeze(slots));
    }

    fn thaw(&mut self) {
        with_policies!(each &mut self.order, |order| order.thaw());
    }

    fn thaw_some(&mut self, most: usize) -> bool {
        with_policies!(each &mut self.order, |order| order.thaw_some(most))
    }

    fn fetches_ahead(&self) -> Option<u64> {
        with_policies!(each & self.order, |order| order.fetches_ahead())
    }

    fn memory_bytes(&self) -> usize {
        with_policies!(each & self.order, |order| size_of_val(&**order) + order.memory_bytes())
    }
}

/// Marks of [`AnyPolicy`]: those of the policy it is.
#[derive(Debug, Clone)]
pub struct AnyMarks(Inner);

/// Every kind of marks that a registered policy has.
macro_rules! any_marks {
    ($($Kind:ident,)*) => {
        #[derive(Debug, Clone)]
        enum Inner {
            $($Kind($Kind),)*
        }

        $(
            impl From<$Kind> for AnyMarks {
                fn from(marks: $Kind) -> Self {
                    Self(Inner::$Kind(marks))
                }
            }
        )*

        impl Marks for AnyMarks {
            /// They can owe a promotion; whether they ever do is in [`POLICIES`](crate::POLICIES).
            const KIND: HitKind = HitKind::LruLike;
            const PLAIN: Option<Plain<Self>> = Plain::YES;

            #[inline]
            fn touch(&self, slot: Slot) -> Touch {
                match &self.0 {
                    $(Inner::$Kind(marks) => marks.touch(slot),)*
                }
            }
        }
    };
}

any_marks! {
    NoMarks,
    AlwaysPromote,
    TryPromote,
    Counters,
    Coins,
    LastUses,
    Stamps,
    AgedHits,
}
