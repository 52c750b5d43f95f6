//! Where libraries of CUDA and drivers usually lie.

use bstr::{BStr, BString, ByteSlice};

use super::super::python::glob::glob;
use super::{Origin, Place};
use crate::system::{Environment, System, join};

/// Library directories of a toolkit below its root.
pub(super) const IN_TOOLKIT: &[&str] =
    &["lib64", "lib", "targets/*/lib", "extras/CUPTI/lib64", "nvvm/lib64", "compat", "lib64/stubs", "lib/stubs"];

/// Roots of toolkits and directories of drivers in their usual places.
pub(super) const TOOLKITS: &[&str] = &[
    "/usr/local/cuda*",
    "/opt/cuda*",
    "/opt/nvidia/hpc_sdk/Linux_*/*/cuda/*",
    "/opt/nvidia/hpc_sdk/Linux_*/*/math_libs/*",
];

pub(super) const DIRECTORIES: &[&str] = &[
    "/opt/nvidia/hpc_sdk/Linux_*/*/comm_libs/*/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/wsl/drivers/*",
    "/usr/lib/*/nvidia/current",
    "/usr/lib/nvidia*",
    "/usr/lib64/nvidia",
    "/usr/lib/*/nvidia",
    "/usr/lib/*/tegra",
    "/run/opengl-driver/lib",
    "/var/lib/snapd/lib/gl",
    "/usr/local/lib",
    "/opt/*/lib",
    "/opt/*/lib64",
];

/// Variables that name a root with libraries.
pub(super) const VARIABLES: &[&str] = &[
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDNN_PATH",
    "CUDNN_HOME",
    "TENSORRT_HOME",
    "NCCL_HOME",
    "EBROOTCUDA",
    "CONDA_PREFIX",
];

/// Directories where CUDA parts and drivers usually lie, and those that variables of the environment name.
pub fn usual_places(system: &System, env: &Environment) -> Vec<Place> {
    let mut out: Vec<Place> = Vec::new();
    let mut add = |directory: BString, origin: Origin| {
        if system.is_dir(directory.as_bstr()) && out.iter().all(|p| p.directory != directory) {
            out.push(Place { directory, origin });
        }
    };
    let found = |pattern: &BStr| {
        let mut found = glob(system, pattern);
        found.sort();
        found
    };
    for variable in VARIABLES {
        let Some(root) = env.get(variable).filter(|r| r.first() == Some(&b'/')) else { continue };
        for below in IN_TOOLKIT {
            // Only our own part of the pattern may hold wildcards, the value of the variable is taken as it is.
            match below.split_once('*') {
                None => add(join(root, below), Origin::Variable(variable)),
                Some((before, after)) => {
                    let base = join(root, before.trim_end_matches('/'));
                    for entry in system.files.list(base.as_bstr()).unwrap_or_default() {
                        let directory =
                            join(join(base.as_bstr(), &entry.name).as_bstr(), after.trim_start_matches('/'));
                        add(directory, Origin::Variable(variable));
                    }
                }
            }
        }
    }
    for root in TOOLKITS {
        for below in IN_TOOLKIT {
            for directory in found(join(root.as_bytes().as_bstr(), below).as_bstr()) {
                add(directory, Origin::Toolkit);
            }
        }
    }
    for pattern in DIRECTORIES {
        for directory in found(pattern.as_bytes().as_bstr()) {
            add(directory, Origin::Toolkit);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Layout;
    use crate::fixture::{Fixture, Loader};
    use crate::ld::Store;

    fn store(fixture: &str) -> Store {
        let fixture = Fixture::parse(fixture.as_bytes()).expect("a fixture");
        let system = fixture.system(Loader::glibc(2, 36)).expect("a system");
        Store::new(system, Layout::LITTLE_64, false)
    }

    #[test]
    fn usual_places_follow_variables_without_reading_them_as_patterns() {
        let store = store(
            "# places\nexe /app/run needed=libx.so.1\ndir /x*y/lib64\ndir /xzy/lib64\ndir /x*y/targets/t/lib\n\
             dir /usr/local/cuda-12.1/lib64/stubs\nexec /app/run\n",
        );
        let mut env = Environment::new();
        env.set("CUDA_HOME", "/x*y");
        let places: Vec<(String, String)> = usual_places(store.system(), &env)
            .into_iter()
            .map(|p| (p.directory.to_string(), p.origin.to_string()))
            .collect();
        let has = |d: &str, o: &str| places.iter().any(|(a, b)| (a.as_str(), b.as_str()) == (d, o));
        assert!(has("/x*y/lib64", "CUDA_HOME") && has("/x*y/targets/t/lib", "CUDA_HOME"), "{places:?}");
        assert!(has("/usr/local/cuda-12.1/lib64", "usual place"), "{places:?}");
        assert!(has("/usr/local/cuda-12.1/lib64/stubs", "usual place"), "{places:?}");
        assert!(!places.iter().any(|(d, _)| d.starts_with("/xzy")), "{places:?}");
    }
}
