//! In which order loaded images are relocated: dependencies first (`_dl_sort_maps`, elf/dl-sort-maps.c; rules R6.5,
//! R6.6). The order never changes which definition wins, it decides which failure is told first and which constructor
//! runs first.

use rustc_hash::FxHashMap;

use super::dialect::Dialect;
use super::tunables;
use super::{ImageId, Process};
use crate::system::Host;

/// The two algorithms of glibc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    /// Moves an image behind the last one that depends on it (the only one up to 2.34).
    Moving,
    /// Depth first (the default since 2.35).
    DepthFirst,
}

impl Algorithm {
    /// What the release and the tunable `glibc.rtld.dynamic_sort` choose.
    pub(crate) fn of(dialect: &Dialect, host: &Host) -> Algorithm {
        let told = tunables::number(dialect, host, b"glibc.rtld.dynamic_sort");
        if !dialect.has_dynamic_sort() || told == Some(1) { Algorithm::Moving } else { Algorithm::DepthFirst }
    }
}

/// Most steps of the first algorithm, which takes cubic time on hostile input.
const MAX_STEPS: u64 = 1 << 22;

impl Process {
    /// Sorts images so that what depends comes before what it depends on; the relocation order is the reverse.
    /// `first_stays` keeps the first one in front, as the main program's place is.
    /// `blank` is an image whose dependencies the loader has not noted yet: the one that is opened now.
    pub(crate) fn sort_images(&self, maps: &[ImageId], first_stays: bool, blank: Option<ImageId>) -> Vec<ImageId> {
        match Algorithm::of(self.dialect(), self.host()) {
            Algorithm::Moving => self.sort_by_moving(maps, first_stays),
            Algorithm::DepthFirst => self.sort_depth_first(maps, first_stays, blank),
        }
    }

    /// `l_initfini`: the sorted search list of an image that has one, else itself and what it needs directly.
    fn initfini(&self, id: ImageId) -> impl Iterator<Item = ImageId> + '_ {
        let image = self.image(id);
        let (own, rest) = match image.sorted.is_empty() {
            true => (Some(id), &image.needs),
            false => (None, &image.sorted),
        };
        own.into_iter().chain(rest.iter().copied())
    }

    fn sort_depth_first(&self, maps: &[ImageId], first_stays: bool, blank: Option<ImageId>) -> Vec<ImageId> {
        // False: to be placed. What is not in the list was placed by an earlier sort.
        let mut placed: FxHashMap<ImageId, bool> = maps.iter().map(|id| (*id, false)).collect();
        let mut post_order = Vec::with_capacity(maps.len());
        for root in maps.iter().rev() {
            if post_order.len() == maps.len() {
                break;
            }
            if placed.insert(*root, true) != Some(false) {
                continue;
            }
            // The main program's dependencies are never walked into from below (l_main_map).
            let noted = |id: ImageId| self.initfini(id).filter(move |_| blank != Some(id));
            let mut stack = vec![(*root, noted(*root))];
            while let Some((id, dependencies)) = stack.last_mut() {
                let is_open = |d: &ImageId| placed.get(d) == Some(&false) && *d != ImageId(0);
                match dependencies.find(is_open) {
                    Some(next) => {
                        placed.insert(next, true);
                        stack.push((next, noted(next)));
                    }
                    None => {
                        post_order.push(*id);
                        stack.pop();
                    }
                }
            }
        }
        post_order.reverse();
        if first_stays
            && let Some(first) = maps.first()
            && let Some(at) = post_order.iter().position(|id| id == first)
        {
            post_order[..=at].rotate_right(1);
        }
        post_order
    }

    fn sort_by_moving(&self, maps: &[ImageId], first_stays: bool) -> Vec<ImageId> {
        let mut out = maps.to_vec();
        let skip = usize::from(first_stays).min(out.len());
        let sorted = &mut out[skip..];
        let n = sorted.len();
        if n <= 1 {
            return out;
        }
        let mut seen = vec![0u32; n];
        seen[0] = 1;
        let mut steps = 0;
        let mut i = 0;
        loop {
            let this = sorted[i];
            let mut moved = false;
            for k in (i + 1..n).rev() {
                steps += 1;
                if steps > MAX_STEPS {
                    return out;
                }
                if !self.initfini(sorted[k]).any(|d| d == this) {
                    continue;
                }
                // Behind the last one that depends on it. An image that was moved too often stands in a circle.
                sorted[i..=k].rotate_left(1);
                if seen[i + 1] as usize > n - i {
                    i += 1;
                    seen[i..].fill(0);
                } else {
                    seen[i..=k].rotate_left(1);
                }
                moved = true;
                break;
            }
            if !moved {
                i += 1;
                if i == n {
                    return out;
                }
                seen[i..].fill(0);
            }
            seen[i] += 1;
        }
    }
}
