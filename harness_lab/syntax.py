"""A program's text as a syntax tree, or one line that says where it breaks (PROP-07).

Compiled as well, because the parser alone lets `return` outside a function pass; never executed. Must not
know what a program is for.
"""

import ast
import warnings


class ProgramSyntaxError(Exception):
    """The text is no Python program. One line: place, what is wrong, the text there."""


def parse(code: str) -> ast.Module:
    """The tree of a program that Python would load. Raises ProgramSyntaxError, and nothing else."""
    try:
        code.encode()
    except UnicodeEncodeError as error:
        line = code.count("\n", 0, error.start) + 1
        raise ProgramSyntaxError(
            f"line {line} holds half of a surrogate pair: {code[error.start]!r}"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "<program>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ProgramSyntaxError(_words(error)) from None
    except (ValueError, OverflowError) as error:
        raise ProgramSyntaxError(f"syntax error: {error}") from None
    except (RecursionError, MemoryError):
        raise ProgramSyntaxError("syntax error: nested too deeply to be parsed") from None
    return tree


def _words(error: SyntaxError) -> str:
    place = f" in line {error.lineno}" if error.lineno else ""
    place += f", column {error.offset}" if error.lineno and error.offset and error.offset > 0 else ""
    shown = " ".join((error.text or "").split())[:80]
    return f"syntax error{place}: {error.msg}" + (f": {shown}" if shown else "")


def documentation(tree: ast.Module) -> dict[int, str]:
    """Docstrings and other texts that stand alone as statements: identity of the statement, and the text."""
    return {
        id(node): node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def reads_itself(tree: ast.Module) -> bool:
    """Whether the program may read, and so send, its own documentation."""
    named = {"__doc__", "__file__", "inspect", "getdoc", "getsource", "tokenize", "linecache"}
    return any(
        getattr(node, field, None) in named
        for node in ast.walk(tree)
        for field in ("id", "attr", "name", "module")
    )


def bare(tree: ast.Module) -> str:
    """What is left of a program without documentation and annotations, for comparison. Changes the tree."""
    return ast.dump(_Stripper(documentation(tree)).visit(tree))


class _Stripper(ast.NodeTransformer):
    def __init__(self, apart: dict[int, str]) -> None:
        self._apart = apart

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return ast.Pass() if id(node) in self._apart else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> ast.AST | None:
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(arg=node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._block(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._block(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._block(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None or not node.simple:
            return node
        return ast.Assign(targets=[node.target], value=self.visit(node.value), lineno=node.lineno)

    def _block(self, node: ast.FunctionDef | ast.ClassDef | ast.Module) -> ast.AST:
        self.generic_visit(node)
        node.body = [item for item in node.body if not isinstance(item, ast.Pass)] or [ast.Pass()]
        return node
