//! Keys whose comparison runs no code of the user's.
//!
//! Comparing two keys of another type may use the cache in the middle of a lookup, for which the
//! lookup has to check. For numbers, text and bytes of the standard library it cannot, and the
//! check is left out when the lookup is compiled.

use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::Arc; // not that of the models: a type of key

/// A type's identity, whether or not the type has lifetimes in it. Types that differ only in
/// lifetimes have the same one.
#[inline(always)]
fn identity<T: ?Sized>() -> TypeId {
    trait Identity {
        fn identity(&self) -> TypeId
        where
            Self: 'static;
    }
    impl<T: ?Sized> Identity for PhantomData<T> {
        #[inline(always)]
        fn identity(&self) -> TypeId
        where
            Self: 'static,
        {
            TypeId::of::<T>()
        }
    }
    let of: &dyn Identity = &PhantomData::<T>;
    // SAFETY: only the lifetime changes, of a reference to nothing, and the number that the method
    // returns has none.
    unsafe { std::mem::transmute::<&dyn Identity, &(dyn Identity + 'static)>(of) }.identity()
}

/// Returns whether a type is one of the standard library's that compare without any code of the
/// user's.
#[inline(always)]
fn is_plain<T: ?Sized>() -> bool {
    macro_rules! is_one_of {
        ($($plain:ty),*) => { $(identity::<T>() == TypeId::of::<$plain>())||* };
    }
    is_one_of!(
        u8,
        u16,
        u32,
        u64,
        u128,
        usize,
        i8,
        i16,
        i32,
        i64,
        i128,
        isize,
        bool,
        char,
        str,
        String,
        Box<str>,
        Arc<str>,
        [u8],
        Vec<u8>,
        Box<[u8]>,
        Arc<[u8]>
    )
}

/// Returns whether comparing a key of type `K` with one that is looked up as `Q` runs no code of
/// the user's: both types, and so the way from one to the other, are the standard library's.
#[inline(always)]
pub(crate) fn compares_plainly<K, Q: ?Sized>() -> bool {
    is_plain::<K>() && is_plain::<Q>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Eq)]
    struct Own(u64);

    #[test]
    fn only_types_of_the_standard_library_compare_plainly() {
        assert!(compares_plainly::<u64, u64>());
        assert!(compares_plainly::<String, str>());
        assert!(!compares_plainly::<u64, Own>(), "a type of the user's may borrow from a number");
        assert!(!compares_plainly::<Own, u64>());
        assert!(!compares_plainly::<&str, str>(), "not listed");
    }
}
