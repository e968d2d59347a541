//! [`Numbered`]: caches by their numbers, which grow.
//!
//! A sorted array does what the lists of caches need, with a tenth of a tree's code, which all
//! programs that use the library would compile.

/// A map whose keys are numbers that mostly grow.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    /// All values in the order of their numbers; `None` for removed ones.
    places: Vec<(u64, Option<T>)>,
    live: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Numbered<T> {
    /// Number of places up to which removed values keep theirs.
    const FEW: usize = 16;

    /// Creates an empty map.
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), live: 0 }
    }

    fn place(&self, number: u64) -> Result<usize, usize> {
        self.places.binary_search_by(|place| place.0.cmp(&number))
    }

    /// Adds a value under a number that has none.
    pub(crate) fn insert(&mut self, number: u64, value: T) {
        self.live += 1;
        match self.place(number) {
            Ok(at) => self.places[at].1 = Some(value),
            // Mostly the end: a smaller number may be added a moment after a larger one.
            Err(at) => self.places.insert(at, (number, Some(value))),
        }
    }

    /// Returns the value of a number.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let at = self.place(number).ok()?;
        self.places[at].1.as_mut()
    }

    /// Removes the value of a number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.place(number).ok()?;
        let removed = self.places[at].1.take()?;
        self.live -= 1;
        // Places are closed together, so a removal takes constant time on average.
        if self.places.len() > Self::FEW.max(2 * self.live) {
            self.places.retain(|place| place.1.is_some());
            self.places.shrink_to(2 * self.live);
        }
        Some(removed)
    }

    /// Returns true if there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the numbers and values in the order of numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..4u8, 0..60u64), 0..400)) {
            let (mut numbered, mut model) = (Numbered::new(), BTreeMap::new());
            for (at, (step, number)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        if model.insert(number, at).is_some() {
                            numbered.remove(number);
                        }
                        numbered.insert(number, at);
                    }
                    2 => prop_assert_eq!(numbered.remove(number), model.remove(&number)),
                    _ => prop_assert_eq!(numbered.get_mut(number), model.get_mut(&number)),
                }
                prop_assert_eq!(numbered.is_empty(), model.is_empty());
                prop_assert!(numbered.places.len() <= Numbered::<usize>::FEW.max(2 * model.len()));
            }
            let found: Vec<_> = numbered.iter().map(|(number, value)| (number, *value)).collect();
            prop_assert_eq!(found, model.into_iter().collect::<Vec<_>>());
        }
    }
}
