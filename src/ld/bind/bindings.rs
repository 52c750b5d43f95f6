//! Bindings of a process, many of them: kept as the lookups hand them out, never copied.

use super::Binding;

/// Bindings in the order in which they are recorded.
#[derive(Clone, Default, Debug)]
pub struct Bindings {
    parts: Vec<Vec<Binding>>,
    count: usize,
    /// The last part is made of single bindings, and more can follow.
    is_open: bool,
}

impl Bindings {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Binding> {
        self.parts.iter().flatten()
    }

    /// Those from a number on.
    pub fn since(&self, first: usize) -> impl Iterator<Item = &Binding> {
        let mut before = first;
        self.parts.iter().flat_map(move |part| {
            let skipped = before.min(part.len());
            before -= skipped;
            &part[skipped..]
        })
    }

    /// All of them in pieces, each of at least one binding.
    pub fn parts(&self) -> impl Iterator<Item = &[Binding]> {
        self.parts.iter().map(Vec::as_slice).filter(|part| !part.is_empty())
    }

    /// Adds one.
    pub fn push(&mut self, binding: Binding) {
        match self.parts.last_mut().filter(|_| self.is_open) {
            Some(part) => part.push(binding),
            None => self.parts.push(vec![binding]),
        }
        self.is_open = true;
        self.count += 1;
    }

    /// Adds many, as they are.
    pub fn append(&mut self, part: Vec<Binding>) {
        if part.is_empty() {
            return;
        }
        self.count += part.len();
        self.parts.push(part);
        self.is_open = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::references::Class;
    use crate::ld::{ImageId, When};

    fn binding(symbol: u32) -> Binding {
        let (from, to) = (ImageId(0), ImageId(1));
        Binding { from, to, symbol, definition: 0, class: Class::Plt, when: When::Load }
    }

    #[test]
    fn order_and_number_are_those_of_one_list() {
        let mut all = Bindings::default();
        assert!(all.is_empty());
        all.push(binding(0));
        all.push(binding(1));
        all.append(vec![binding(2), binding(3)]);
        all.append(Vec::new());
        all.push(binding(4));
        let numbers = |found: Vec<&Binding>| found.iter().map(|b| b.symbol).collect::<Vec<u32>>();
        assert_eq!(all.len(), 5);
        assert_eq!(numbers(all.iter().collect()), [0, 1, 2, 3, 4]);
        assert_eq!(numbers(all.iter().rev().collect()), [4, 3, 2, 1, 0]);
        assert_eq!(all.parts().map(<[Binding]>::len).collect::<Vec<_>>(), [2, 2, 1]);
        for first in 0..7 {
            let expected: Vec<u32> = (first..5).collect();
            assert_eq!(numbers(all.since(first as usize).collect()), expected);
        }
    }
}
