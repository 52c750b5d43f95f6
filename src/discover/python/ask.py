# Asked of the interpreter with `-I -S`: what would an ordinary start have on sys.path, and what is this interpreter?
#
# The interpreter's own `site` module does the work, so every distribution's patches count. What it must not do is
# taken away first: lines of code in .pth files and entry points are noted instead of executed, sitecustomize and
# usercustomize are left alone, and imports are answered from the standard library only.
import sys

if not sys.flags.isolated:
    del sys.path[0]
standard = list(sys.path)
import posix
import _imp
import _frozen_importlib_external as external


class Standard:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return external.PathFinder.find_spec(name, standard if path is None else path, target)


sys.meta_path[:] = [Standard if f is external.PathFinder else f for f in sys.meta_path]
import os
import site


def text(value):
    raw = value if isinstance(value, bytes) else os.fsencode(value)
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else "\\u%04x" % ord(c) for c in raw.decode("latin-1")) + '"'


def texts(values):
    return "[" + ",".join(map(text, values)) + "]"


skipped = []


def skip(*code):
    names = sys._getframe(1).f_locals
    skipped.append((names.get("fullname") or names.get("filename") or "", code[0] if isinstance(code[0], str) else ""))
    return lambda: None


class Names:
    @staticmethod
    def resolve_name(name, **how):
        return skip(name)


def user_site_allowed():
    if variable("PYTHONNOUSERSITE"):
        return False
    return True if os.geteuid() == os.getuid() and os.getegid() == os.getgid() else None


def variable(name):
    return posix.environ.get(b"LDAUDIT_" + name.encode(), posix.environ.get(name.encode(), b""))


def bounded(read):
    # No list of paths is that large, and reading one line by line takes seconds.
    def addpackage(directory, name, *more, **named):
        try:
            large = os.stat(os.path.join(directory, name)).st_size > 1048576
        except (OSError, ValueError):
            large = False
        return (more[0] if more else None) if large else read(directory, name, *more, **named)

    return addpackage


base = (sys.prefix, sys.exec_prefix)
if hasattr(sys, "base_prefix"):
    base = (sys.base_prefix, sys.base_exec_prefix)
site.exec = skip
if hasattr(site, "addpackage"):
    site.addpackage = bounded(site.addpackage)
site.pkgutil = Names
site.execsitecustomize = site.execusercustomize = lambda: None
site.check_enableusersite = user_site_allowed
first = variable("PYTHONPATH")
if first:
    sys.path[:0] = os.fsdecode(first).split(":")
site.main()
try:
    real = posix.readlink("/proc/self/exe")
except OSError:
    real = ""
answer = "{" + ",".join(
    '"%s":%s' % pair
    for pair in (
        ("executable", text(sys.executable or "")),
        ("real_executable", text(real)),
        ("prefix", text(sys.prefix)),
        ("exec_prefix", text(sys.exec_prefix)),
        ("base_prefix", text(base[0])),
        ("base_exec_prefix", text(base[1])),
        ("implementation", text(sys.implementation.name)),
        ("version", "[%d,%d,%d]" % sys.version_info[:3]),
        ("abiflags", text(getattr(sys, "abiflags", ""))),
        ("platlibdir", text(getattr(sys, "platlibdir", "lib"))),
        ("multiarch", text(getattr(sys.implementation, "_multiarch", "") or "")),
        ("suffixes", texts(_imp.extension_suffixes())),
        ("builtins", texts(sys.builtin_module_names)),
        ("standard", texts(standard)),
        ("path", texts(sys.path)),
        ("user_site", text(site.getusersitepackages() or "")),
        ("user_site_enabled", "true" if site.ENABLE_USER_SITE else "false"),
        ("skipped", "[" + ",".join("[%s,%s]" % (text(f), text(c)) for f, c in skipped[:100]) + "]"),
        (
            "environment",
            "[" + ",".join("[%s,%s]" % (text(k), text(v)) for k, v in posix.environ.items() if k[:3] == b"LD_" or k[:6] == b"PYTHON") + "]",
        ),
    )
) + "}"
answer = ("\nldaudit-python/1 " + answer + "\n").encode("ascii")
while answer:
    answer = answer[posix.write(1, answer):]
posix._exit(0)
