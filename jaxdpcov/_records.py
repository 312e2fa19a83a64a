"""Frozen dataclasses that are JAX pytrees and are checked when a person makes them, never when JAX does."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")

#: Every record class by name: what a release file may name, and nothing else.
REGISTRY: dict[str, type] = {}


@dataclass_transform(frozen_default=True, kw_only_default=False)
def record(*, static: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass and a pytree node whose fields are leaves, save the `static` ones.

    A subclass of a record keeps its parent's static fields.

    `__init__` and `__post_init__` run for people only. JAX rebuilds a node from gradients, tracers and
    sentinels, and a check that raised there would break `grad` and `vmap`.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        names = [field.name for field in dataclasses.fields(made)]
        fixed = getattr(made, "_static_fields", ()) + static
        made._static_fields = fixed
        unknown = set(fixed) - set(names)
        if unknown:
            raise TypeError(f"{cls.__name__} has no field {sorted(unknown)}")
        leaves = [name for name in names if name not in fixed]

        def flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
            keyed = [(jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in leaves]
            return keyed, tuple(getattr(node, name) for name in fixed)

        def flatten(node: Any) -> tuple[list[Any], Any]:
            return [getattr(node, name) for name in leaves], tuple(getattr(node, name) for name in fixed)

        def unflatten(aux: Any, children: Any) -> Any:
            return build(made, dict(zip(leaves, children)) | dict(zip(fixed, aux)))

        jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
        REGISTRY[cls.__name__] = made
        return made

    return decorate


def build(kind: type[T], fields: dict[str, Any]) -> T:
    """An instance of a record class from all its fields, without the checks that its constructor makes."""
    missing = {field.name for field in dataclasses.fields(kind)} ^ set(fields)  # type: ignore[arg-type]
    if missing:
        raise TypeError(f"{kind.__name__} has other fields than {sorted(missing)}")
    node = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(node, name, value)
    return node
