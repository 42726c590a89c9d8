"""The part of KubeRay's RayService (ray.io/v1, KubeRay 1.6) that we use, as a JSON schema written by hand.

From the field reference in Ray's documentation: KubeRay's own schema is in no package of the index. It knows every key
that the manifest may have, so a misspelt one is found; pod templates are judged by Kubernetes' schema instead.
"""

from typing import Any, Final

_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEMPLATE: Final = {"type": "object", "required": ["spec"]}
_GROUP: Final = {"rayStartParams": _STRINGS, "template": _TEMPLATE, "resources": _STRINGS, "labels": _STRINGS}


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


_AUTOSCALER: Final = {
    "version": {"enum": ["v1", "v2"]},
    "idleTimeoutSeconds": _COUNT,
    "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
}
_WORKERS: Final = {
    **_GROUP,
    "groupName": {"type": "string"},
    "replicas": _COUNT,
    "minReplicas": _COUNT,
    "maxReplicas": _COUNT,
    "numOfHosts": _COUNT,
    "idleTimeoutSeconds": _COUNT,
}
_CLUSTER: Final = {
    "rayVersion": {"type": "string"},
    "enableInTreeAutoscaling": {"type": "boolean"},
    "autoscalerOptions": _closed(_AUTOSCALER, []),
    "authOptions": _closed({"mode": {"enum": ["disabled", "token"]}, "secretName": {"type": "string"}}, []),
    "headGroupSpec": _closed(_GROUP, ["template"]),
    "workerGroupSpecs": {
        "type": "array",
        "items": _closed(_WORKERS, ["groupName", "minReplicas", "maxReplicas", "template"]),
    },
}
_SPEC: Final = {
    "rayClusterDeletionDelaySeconds": _COUNT,
    "serveConfigV2": {"type": "string"},
    "rayClusterConfig": _closed(_CLUSTER, ["headGroupSpec"]),
    "upgradeStrategy": {"type": "object"},
    "excludeHeadPodFromServeSvc": {"type": "boolean"},
    "suspend": {"type": "boolean"},
}
_METADATA: Final = {"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}, "labels": _STRINGS}

RAY_SERVICE: Final = _closed(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayService"},
        "metadata": _closed(_METADATA, ["name"]),
        "spec": _closed(_SPEC, ["serveConfigV2", "rayClusterConfig"]),
    },
    ["apiVersion", "kind", "metadata", "spec"],
)
